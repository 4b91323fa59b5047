"""Encoding alone, on one core: rows of Arrow columns to finished record batches.

Two questions: how many records of about 110 bytes it makes in a second with zstd, and how its time for values of 1 KB
without compression compares with a copy of the bytes that it makes, batch by batch, to fresh memory.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.figures import Spread
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from spark_2pc_sink.wire.record_batch import assign_producer, encode_sections, encode_unassigned_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scale import Scale

#: As many rows as Spark hands to Python at a time, by default.
ROWS_PER_ARROW_BATCH = 10_000
SMALL_BATCHES = 20
LARGE_BATCHES = 10
LARGE_VALUE_BYTES = 1_000
_PRODUCER = ProducerIdAndEpoch(1, 0)
_TIMESTAMP_MS = 1_700_000_000_000


def measure(scale: Scale) -> dict[str, Any]:
    """Encode the same rows again and again."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    runs = scale.pick(full=41, quick=21)
    small = [_small(number) for number in range(SMALL_BATCHES)]
    large = [_large(number) for number in range(LARGE_BATCHES)]
    records = SMALL_BATCHES * ROWS_PER_ARROW_BATCH
    value_bytes = sum(pc.sum(pc.binary_length(batch["value"])).as_py() for batch in small) / records
    rates = [records / seconds for seconds in _timed(runs, lambda: _encode(small, "zstd"))]
    plain = [records / seconds for seconds in _timed(runs, lambda: _encode(small, "none"))]
    made = _encode(large, "none")
    views = [memoryview(batch) for batch in made]
    encode_s, copy_s = [], []
    for _ in range(runs):  # in turns
        encode_s += _timed(1, lambda: _encode(large, "none"))
        copy_s += _timed(1, lambda: [bytes(view) for view in views])
    ratio = Spread.of(encode_s).median / Spread.of(copy_s).median
    megabytes = sum(map(len, made)) / 1e6
    found = {
        "zstd_records_per_s": Spread.of(rates).json(),
        "none_records_per_s": Spread.of(plain).json(),
        "value_bytes": value_bytes,
        "large_encode_mb_per_s": megabytes / Spread.of(encode_s).median,
        "large_copy_mb_per_s": megabytes / Spread.of(copy_s).median,
        "large_times_copy": ratio,
    }
    print(
        f"{Spread.of(rates).median / 1e6:.2f} million records/s with zstd, {Spread.of(plain).median / 1e6:.2f} without "
        f"({value_bytes:.0f}-byte values); 1 KB values: {found['large_encode_mb_per_s']:.0f} MB/s, "
        f"{ratio:.2f} x the time of a copy ({found['large_copy_mb_per_s']:.0f} MB/s)"
    )
    return found


def _timed(runs: int, work: Callable[[], object]) -> list[float]:
    """Seconds of each run, after one to warm up."""
    work()
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return seconds


def _encode(batches: list[pa.RecordBatch], compression: str) -> list[memoryview]:
    """As a task does it for one partition, without collecting rows over Arrow batches."""
    options = KafkaOptions.parse({"bootstrap.servers": "127.0.0.1:1", "compression.type": compression})
    made = []
    for batch in batches:
        for rows in EncodedRows.of(batch["key"], batch["value"], None).cut(options.batch_bytes_max):
            (section,) = encode_sections(rows, [len(rows)])
            unassigned = encode_unassigned_batch(
                section, timestamp_ms=_TIMESTAMP_MS, compression=compression, level=options.compression_level
            )
            made.append(assign_producer(unassigned, producer=_PRODUCER, base_sequence=0))
    return made


def _small(number: int) -> pa.RecordBatch:
    """The JSON of the narrow rows."""
    ids = range(number * ROWS_PER_ARROW_BATCH, (number + 1) * ROWS_PER_ARROW_BATCH)
    values = [
        f'{{"id":{row},"customer":"c-{row % 50000}","quantity":{row % 1000},"amount":{row * 0.01:.2f},'
        f'"at":"2023-11-14T22:{row // 60 % 60:02}:{row % 60:02}.000Z","express":{str(row % 3 == 0).lower()}}}'
        for row in ids
    ]
    return pa.record_batch({"key": pa.array([str(row) for row in ids]), "value": pa.array(values)})


def _large(number: int) -> pa.RecordBatch:
    chance = random.Random(number)
    ids = range(number * ROWS_PER_ARROW_BATCH, (number + 1) * ROWS_PER_ARROW_BATCH)
    values = [chance.randbytes(LARGE_VALUE_BYTES) for _ in ids]
    return pa.record_batch({"key": pa.array([str(row) for row in ids]), "value": pa.array(values, pa.binary())})
