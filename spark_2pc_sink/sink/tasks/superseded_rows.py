"""The superseded rows of an upsert, and the records that have to wait for them.

Pure. What it costs depends on the rows whose key occurs more than once: of the others nothing is looked at but whether
their key occurs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from spark_2pc_sink.wire.arrow_layout import ArrowColumn, BoolArray, Int64Array


@dataclass(frozen=True)
class Superseded:
    """Of some rows, in the order in which their records would be sent.

    Attributes:
        lost: True for a row where another one of its key has a greater order.
        early: True for a row with the greatest order of its key that stands before one that has lost.
    """

    lost: BoolArray
    early: BoolArray


def find_superseded(identities: ArrowColumn, orders: ArrowColumn) -> Superseded:
    """Compare rows of the same key; those with the same greatest order all stay.

    Args:
        identities: from `row_identities`.
        orders: from `order_keys`.
    """
    found = Superseded(np.zeros(len(identities), bool), np.zeros(len(identities), bool))
    rows, groups = _doubled(identities)
    if not len(rows):
        return found
    group_orders = orders.take(pa.array(rows))
    lost = _lost(groups, group_orders)
    # Of each key the place of the last row that has lost; rows are in ascending order, so the last one stays.
    last = np.full(int(groups.max()) + 1, -1, np.int64)
    last[groups[lost]] = rows[lost]
    found.lost[rows] = lost
    found.early[rows] = ~lost & (rows < last[groups])
    return found


def _doubled(identities: ArrowColumn) -> tuple[Int64Array, Int64Array]:
    """The rows whose key occurs more than once, in order, and the number of the key of each."""
    rows = np.flatnonzero(np.asarray(identities.is_valid())) if identities.null_count else None
    words = _first_words(identities if rows is None else identities.take(pa.array(rows)))
    ordered = np.sort(words)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    nothing = np.zeros(0, np.int64)
    if not len(again):
        return nothing, nothing
    candidates = np.flatnonzero(np.isin(words, again))
    if rows is not None:
        candidates = rows[candidates]
    # By whole identities now, of which the first words may be equal by chance.
    codes = np.asarray(identities.take(pa.array(candidates)).dictionary_encode().indices).astype(np.int64)
    doubled = np.bincount(codes)[codes] > 1
    return candidates[doubled], codes[doubled]


def _first_words(identities: ArrowColumn) -> Any:
    """The first eight bytes of each identity; none is null."""
    if pa.types.is_int64(identities.type):
        return identities.to_numpy()
    words = np.frombuffer(identities.buffers()[1], np.int64).reshape(-1, identities.type.byte_width // 8)
    return words[identities.offset : identities.offset + len(identities), 0]


def _lost(groups: Int64Array, orders: ArrowColumn) -> BoolArray:
    """True for each row whose group has one with a greater order."""
    there = orders.is_valid()
    table = pa.table({"group": groups, "there": there.cast(pa.int8()), "order": orders})
    ordered = pc.sort_indices(table, [(name, "ascending") for name in table.column_names]).to_numpy()
    greatest = np.zeros(int(groups.max()) + 1, np.int64)
    greatest[groups[ordered]] = ordered
    best = orders.take(pa.array(greatest[groups]))
    # Null where one of the two is: a null loses to any value, and where the greatest is null, all are.
    lost = pc.if_else(there, pc.not_equal(orders, best), best.is_valid())
    return np.asarray(lost.fill_null(fill_value=False))
