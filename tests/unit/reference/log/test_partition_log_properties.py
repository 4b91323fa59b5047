"""Random interleavings of transactions on one partition, against a plain list of what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.log.partition_log import Isolation, LogSettings, PartitionLog
from spark_2pc_sink.reference.storage.files import MemoryStore
from tests.unit.reference.batches import NOW_MS, append, append_in_transaction, client_batch, read_back

#: So small that a handful of batches fills one.
SEGMENT_BYTES = 12_000
PRODUCERS = range(4)

COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(PRODUCERS), st.integers(1, 3), st.sampled_from([10, 600, 3000])),
        st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans(), st.just(0)),
        st.tuples(st.just("plain"), st.just(0), st.integers(1, 3), st.sampled_from([10, 2000])),
        st.tuples(st.just("sync"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@dataclass
class Transaction:
    """One transaction as this test remembers it."""

    pid: int
    first_offset: int
    values: list[tuple[int, bytes]] = field(default_factory=list)
    marker_offset: int | None = None
    committed: bool = False


@dataclass
class Model:
    """Everything that happened, in lists."""

    transactions: list[Transaction] = field(default_factory=list)
    plain: list[tuple[int, bytes]] = field(default_factory=list)

    def open(self, pid: int) -> Transaction | None:
        return next((each for each in self.transactions if each.pid == pid and each.marker_offset is None), None)

    def stable_offset(self, high_watermark: int) -> int:
        """No transaction that is open, as far as is visible, begins below it."""
        unstable = [
            each.first_offset
            for each in self.transactions
            if each.marker_offset is None or each.marker_offset >= high_watermark
        ]
        return min([high_watermark, *unstable])

    def committed_below(self, offset: int) -> list[tuple[int, bytes]]:
        committed = [value for each in self.transactions if each.committed for value in each.values]
        return sorted(each for each in [*self.plain, *committed] if each[0] < offset)


async def play(log: PartitionLog, commands: list[tuple[str, int, int, int]]) -> Model:
    """Do to a log what the commands say, and remember it."""
    model = Model()
    epochs = dict.fromkeys(PRODUCERS, 0)
    sequences = dict.fromkeys(PRODUCERS, 0)
    for number, (kind, pid, count, value_bytes) in enumerate(commands):
        at = log.end_offset
        values = [b"%d-%d" % (number, index) + bytes(value_bytes) for index in range(int(count))]
        if kind == "write":
            outcome = append_in_transaction(log, values, producer=(pid, epochs[pid]), sequence=sequences[pid])
            assert (outcome.code, outcome.base_offset) == (Code.NONE, at)
            if model.open(pid) is None:
                model.transactions.append(Transaction(pid, at))
            opened = model.open(pid)
            assert opened is not None
            opened.values += zip(range(at, at + count), values, strict=True)
            sequences[pid] += count
        elif kind == "end":
            epochs[pid] += 1
            sequences[pid] = 0
            marker = EndMarker(pid, epochs[pid], bool(count), coordinator_epoch=0, transaction_version=2)
            assert log.append_marker(marker, now_ms=NOW_MS) == Code.NONE
            opened = model.open(pid)
            if opened is not None:
                opened.marker_offset, opened.committed = at, bool(count)
        elif kind == "plain":
            append(log, client_batch(values))
            model.plain += zip(range(at, at + count), values, strict=True)
        else:
            await log.flush()
        assert log.last_stable_offset == model.stable_offset(log.high_watermark)
    return model


def consume(log: PartitionLog, start: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """Read committed records as a consumer does (``CompletedFetch.nextFetchedRecord``)."""
    found: list[tuple[int, bytes]] = []
    offset = start
    while offset < log.last_stable_offset:
        records, aborted = log.read(offset, max_bytes=max_bytes, isolation=Isolation.READ_COMMITTED, min_one=True)
        assert aborted is not None
        waiting = sorted(aborted, key=lambda each: each[1])
        active: set[int] = set()
        batches = read_back(records)
        assert batches
        for batch in batches:
            last_offset = batch.base_offset + batch.last_offset_delta
            while waiting and waiting[0][1] <= last_offset:
                active.add(waiting.pop(0)[0])
            if batch.is_control_batch:
                (marker,) = batch
                if marker.key == b"\0\0\0\0":
                    active.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in active):
                found += [(record.offset, record.value) for record in batch if record.offset >= offset]
            offset = max(offset, last_offset + 1)
    return found


def opened(store: MemoryStore, leader_epoch: int = 0) -> PartitionLog:
    settings = LogSettings(segment_bytes=SEGMENT_BYTES)
    return PartitionLog.open(store, topic="t", partition=0, leader_epoch=leader_epoch, settings=settings)


@given(COMMANDS, st.sampled_from([0, 700, 5000, 1 << 20]), st.data())
async def test_a_read_committed_consumer_gets_exactly_what_was_committed(
    commands: list[tuple[str, int, int, int]], max_bytes: int, data: st.DataObject
) -> None:
    log = opened(MemoryStore())
    model = await play(log, commands)
    start = data.draw(st.integers(0, log.last_stable_offset))
    expected = [each for each in model.committed_below(log.last_stable_offset) if each[0] >= start]
    assert consume(log, start, max_bytes) == expected


@given(COMMANDS)
async def test_a_crash_after_any_command_loses_only_guards(commands: list[tuple[str, int, int, int]]) -> None:
    store = MemoryStore()
    log = opened(store)
    await play(log, commands)
    await log.flush()
    again = opened(store, leader_epoch=1)
    assert again.high_watermark == log.high_watermark
    assert again.last_stable_offset == log.last_stable_offset
    assert list(again.producers()) == list(log.producers())
    assert again._state.aborted.between(0, 1 << 20) == log._state.aborted.between(0, 1 << 20)
    assert consume(again, 0, 1 << 20) == consume(log, 0, 1 << 20)
    for pid in PRODUCERS:
        assert again._state.producers.entry(pid) == log._state.producers.entry(pid)
