"""The schema of the shuffle: the columns of the rows that encode tasks hand to tasks that send, and their order."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

RECORDS_KIND: Final = "records"
#: Records in the file of their encode task.
FILED_KIND: Final = "filed"
RECEIPT_KIND: Final = "receipt"
INDEX_KIND: Final = "index"

#: The shuffle is by this column: see `TaskPlan.salts`.
SALT: Final = "salt"
#: The same columns for Arrow, and for Spark.
SHUFFLE_SCHEMA: Final = pa.schema(
    [
        (SALT, pa.int32()),
        ("encode_task", pa.int32()),
        ("task_attempt", pa.int64()),
        ("number", pa.int64()),
        ("lane", pa.int32()),
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int32()),
        ("digest", pa.binary()),
        ("row_key", pa.string()),
        ("payload", pa.binary()),
    ]
)
SHUFFLE_DDL: Final = (
    f"{SALT} int, encode_task int, task_attempt bigint, number bigint, lane int, kind string, topic string, "
    "partition int, records int, digest binary, row_key string, payload binary"
)
#: The order in which a task gets its shuffle batches where it needs to know all indexes before the first record.
INDEXES_FIRST: Final = (f"kind <> '{INDEX_KIND}'", "encode_task", "task_attempt", "number")
