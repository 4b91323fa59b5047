"""Which aborted transactions a fetch lists (``TransactionIndex.collectAbortedTxns``)."""

from __future__ import annotations

from itertools import combinations_with_replacement

from spark_2pc_sink.reference.log.aborted_index import AbortedIndex
from spark_2pc_sink.reference.log.producer_state import EndedTransaction

#: Producer id, first offset, offset of the marker: one after the other, side by side, and one inside another.
ABORTED = [(1, 0, 2), (3, 4, 6), (2, 3, 7), (4, 8, 9), (6, 12, 13), (5, 11, 16), (7, 17, 18)]
END_OFFSET = 20


def index() -> AbortedIndex:
    made = AbortedIndex()
    for pid, first_offset, marker_offset in ABORTED:
        later = [first for _, first, marker in ABORTED if first < marker_offset < marker]
        ended = EndedTransaction(pid, first_offset, marker_offset, commit=False)
        made.add(ended, min(later, default=marker_offset + 1))
    return made


def test_those_that_overlap_what_is_read_in_the_order_of_their_markers() -> None:
    made = index()
    for fetch_offset, upper_offset in combinations_with_replacement(range(END_OFFSET + 1), 2):
        assert made.between(fetch_offset, upper_offset) == tuple(
            (pid, first) for pid, first, marker in ABORTED if marker >= fetch_offset and first < upper_offset
        )


def test_an_entry_remembers_how_far_everything_was_settled() -> None:
    assert [entry.stable_offset for entry in index().entries] == [3, 3, 8, 10, 11, 17, 19]
