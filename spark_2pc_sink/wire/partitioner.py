"""Java's default partitioner, for whole columns: a key goes where a Java producer would put it.

``BuiltInPartitioner.partitionForKey`` is ``Utils.toPositive(Utils.murmur2(key)) % partitionCount``. The hash is
computed for all rows together, four bytes of every key in each step.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.wire.arrow_layout import ArrowColumn, BinaryLayout, as_binary, binary_layout

Int32Array: TypeAlias = npt.NDArray[np.int32]
_UInt32Array: TypeAlias = npt.NDArray[np.uint32]

#: What `partition_for_keys` answers for a null key: no partition follows from it.
NO_PARTITION: Final = -1

# The constants of org.apache.kafka.common.utils.Utils.murmur2.
_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_R: Final = np.uint32(24)
_WORD_BYTES: Final = 4


def murmur2(keys: ArrowColumn) -> Int32Array:
    """``Utils.murmur2`` of each key, as Java's int. A null hashes like an empty key.

    Takes one NumPy step for every four bytes of the longest key, whatever the number of rows.

    Args:
        keys: binary or string column; strings hash as UTF-8, as with Java's StringSerializer.

    Raises:
        LocalProtocolError: the column is of a type that is not bytes.
    """
    layout = binary_layout(as_binary(keys, "key"))
    # Longest first, so that the rows that still have a whole word are always the first ones.
    order = np.argsort(-layout.lengths, kind="stable")
    starts, lengths = layout.starts[order], layout.lengths[order]
    word_counts = lengths // _WORD_BYTES
    # How many rows have more than 0, 1, 2, ... whole words.
    actives = len(order) - np.searchsorted(word_counts[::-1], np.arange(word_counts.max(initial=0)), side="right")
    hashed: _UInt32Array = _SEED ^ lengths.astype(np.uint32)
    for word, active in enumerate(actives.tolist()):
        mixed = _words(layout, starts[:active] + _WORD_BYTES * word) * _M
        mixed ^= mixed >> _R
        mixed *= _M
        hashed[:active] = hashed[:active] * _M ^ mixed
    hashed = _add_last_bytes(hashed, layout, starts, lengths)
    hashed ^= hashed >> np.uint32(13)
    hashed *= _M
    hashed ^= hashed >> np.uint32(15)
    result = np.empty(len(order), np.int32)
    result[order] = hashed.view(np.int32)
    return result


def partition_for_keys(keys: ArrowColumn, partition_count: int) -> Int32Array:
    """The partition of each key among ``partition_count``; `NO_PARTITION` where the key is null.

    Args:
        keys: as for `murmur2`.
        partition_count: partitions of the topic, at least 1.

    Raises:
        LocalProtocolError: no partitions, or a column of a type that is not bytes.
    """
    if partition_count < 1:
        raise LocalProtocolError(
            operation="choose a partition by key",
            state=f"a topic of {partition_count} partitions",
            rule="a topic has at least one partition",
        )
    keys = as_binary(keys, "key")
    partitions: Int32Array = (murmur2(keys) & np.int32(0x7FFFFFFF)) % np.int32(partition_count)
    if keys.null_count:
        partitions[np.asarray(keys.is_null())] = NO_PARTITION
    return partitions


def _words(layout: BinaryLayout, positions: npt.NDArray[np.int64]) -> _UInt32Array:
    """The little-endian words that begin at ``positions``, which need not be aligned."""
    word = layout.data[positions].astype(np.uint32)
    for byte in range(1, _WORD_BYTES):
        word |= layout.data[positions + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _add_last_bytes(
    hashed: _UInt32Array, layout: BinaryLayout, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> _UInt32Array:
    """Mix in the one to three bytes behind the last whole word, as Java's switch does by falling through."""
    remaining = lengths % _WORD_BYTES
    last_starts = starts + (lengths - remaining)
    for byte in reversed(range(_WORD_BYTES - 1)):
        rows = np.flatnonzero(remaining > byte)
        hashed[rows] ^= layout.data[last_starts[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(remaining > 0)
    hashed[rows] *= _M
    return hashed
