"""Java's default partitioner, for whole columns: a key goes where a Java producer would put it.

``BuiltInPartitioner.partitionForKey`` is ``Utils.toPositive(Utils.murmur2(key)) % partitionCount``. The hash is
computed for all rows together, four bytes of every key in each step; what a few long keys have beyond the others is
taken key by key.
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

#: A step takes NumPy 10 µs, whatever the number of rows, and Python a quarter of a microsecond for each (measured).
_FEW_ROWS: Final = 32
#: Where the longest key has no more words than these beyond the other keys, it is not worth while to take them apart.
_MANY_WORDS: Final = 256
#: Words of a long key that are Python integers at a time, of 36 bytes each.
_BLOCK_WORDS: Final = 64 * 1024


def murmur2(keys: ArrowColumn) -> Int32Array:
    """``Utils.murmur2`` of each key, as Java's int. A null hashes like an empty key.

    Takes one NumPy step for every four bytes that more than a few keys have, whatever the number of rows.

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
    step_count = _steps(word_counts)
    # How many rows have more than 0, 1, 2, ... whole words.
    actives = len(order) - np.searchsorted(word_counts[::-1], np.arange(step_count), side="right")
    hashed: _UInt32Array = _SEED ^ lengths.astype(np.uint32)
    for word, active in enumerate(actives.tolist()):
        mixed = _mixed(_words(layout, starts[:active] + _WORD_BYTES * word))
        hashed[:active] = hashed[:active] * _M ^ mixed
    for row in range(np.count_nonzero(word_counts > step_count)):
        first = starts[row] + _WORD_BYTES * step_count
        hashed[row] = _mix_in(int(hashed[row]), layout.data[first : starts[row] + _WORD_BYTES * word_counts[row]])
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


def _steps(word_counts: npt.NDArray[np.int64]) -> int:
    """How many words are taken from all rows together, whose counts of words come longest first."""
    longest, rest = (int(word_counts[row]) if row < len(word_counts) else 0 for row in (0, _FEW_ROWS))
    return rest if longest - rest > _MANY_WORDS else longest


def _mix_in(hashed: int, key_bytes: npt.NDArray[np.uint8]) -> int:
    """Mix further whole words of one key into its hash."""
    multiplier, mask = int(_M), 0xFFFFFFFF
    words = key_bytes.view("<u4")
    for block in range(0, len(words), _BLOCK_WORDS):
        for mixed in _mixed(words[block : block + _BLOCK_WORDS]).tolist():
            hashed = hashed * multiplier & mask ^ mixed
    return hashed


def _mixed(words: _UInt32Array) -> _UInt32Array:
    mixed: _UInt32Array = words * _M
    mixed ^= mixed >> _R
    mixed *= _M
    return mixed


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
