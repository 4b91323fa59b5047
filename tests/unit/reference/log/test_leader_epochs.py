"""Which leader epoch wrote what (KIP-101)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.reference.log.log_values import EpochEnd, LeaderEpochs

#: Steps from one record's epoch to the next one's.
STEPS = st.lists(st.integers(0, 3), max_size=30)


@given(STEPS, st.integers(-2, 30))
def test_the_end_of_an_epoch_is_where_a_later_one_begins(steps: list[int], asked: int) -> None:
    epochs = LeaderEpochs()
    written: list[int] = []
    for step in steps:
        written.append((written[-1] if written else 0) + step)
        epochs.begin(written[-1], len(written) - 1)
    answer = epochs.end_of(asked, len(written))
    known = [epoch for epoch in written if epoch <= asked]
    if asked < 0 or not written or asked > written[-1]:
        assert answer == EpochEnd(-1, -1)
    elif known:
        assert answer == EpochEnd(known[-1], len(known))
    else:
        assert answer == EpochEnd(asked, 0)
    assert [epochs.at(offset) for offset in range(len(written))] == written
    assert epochs.latest == (written[-1] if written else -1)
    assert epochs._epochs == sorted(set(written))  # however many batches an epoch has


def test_an_epoch_without_records_is_forgotten_when_the_next_begins() -> None:
    epochs = LeaderEpochs()
    for epoch, start in ((0, 0), (1, 5), (2, 5)):
        epochs.begin(epoch, start)
    assert epochs.end_of(1, 9) == EpochEnd(0, 5)
    epochs.begin(1, 9)
    assert epochs.latest == 2
