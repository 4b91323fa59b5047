"""The input: parquet files that a stream reads batch by batch, and the table that they go to."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FILES_PER_BATCH = 4
_FIRST_FILE_S = 1_700_000_000
_TEXT_COLUMNS = 12
_NUMBER_COLUMNS = 9
_TIME_COLUMNS = 4
_AMOUNT_COLUMNS = 4


@dataclass(frozen=True)
class Shape:
    """What rows look like.

    Attributes:
        name: for tables and results.
        select: SQL over ``id``, which is distinct within a batch, and ``turn``, the number of the batch.
        table: column definitions of the target; the first column is the primary key.
        storage: clause of the target table, after its columns.
    """

    name: str
    select: tuple[str, ...]
    table: str
    storage: str = ""


#: Six columns; as JSON a value has about 110 bytes.
NARROW = Shape(
    "narrow",
    (
        "id",
        "concat('c-', id % 50000) AS customer",
        "CAST((id + turn) % 1000 AS INT) AS quantity",
        "CAST(id * 0.01 AS DECIMAL(12, 2)) AS amount",
        "timestamp_micros(1700000000000000 + id * 1000) AS at",
        "id % 3 = 0 AS express",
    ),
    "id bigint PRIMARY KEY, customer text, quantity integer, amount numeric(12, 2), at timestamptz, express boolean",
)

#: The same, with room in each page of the table for the next version of its rows (PostgreSQL's HOT updates).
NARROW_WITH_ROOM = replace(NARROW, storage="WITH (fillfactor = 50)")

#: The narrow columns with a double among them, whose text in JSON is the shortest that says which.
NARROW_DOUBLE = Shape(
    "narrow double",
    tuple(column.replace("DECIMAL(12, 2)", "DOUBLE") for column in NARROW.select),
    NARROW.table.replace("numeric(12, 2)", "double precision"),
)

#: Thirty columns; as JSON a value has about 2 KB. Texts are hexadecimal digits of hashes: they compress by half.
WIDE = Shape(
    "wide",
    (
        "id",
        *(f"sha2(concat(id, '-{n}'), 512) AS text_{n}" for n in range(_TEXT_COLUMNS)),
        *(f"xxhash64(id, {n}) AS number_{n}" for n in range(_NUMBER_COLUMNS)),
        *(f"timestamp_micros(1700000000000000 + id * 1000 + {n}) AS time_{n}" for n in range(_TIME_COLUMNS)),
        *(f"CAST((id + {n}) * 0.01 AS DECIMAL(12, 2)) AS amount_{n}" for n in range(_AMOUNT_COLUMNS)),
    ),
    ", ".join(
        (
            "id bigint PRIMARY KEY",
            *(f"text_{n} text" for n in range(_TEXT_COLUMNS)),
            *(f"number_{n} bigint" for n in range(_NUMBER_COLUMNS)),
            *(f"time_{n} timestamptz" for n in range(_TIME_COLUMNS)),
            *(f"amount_{n} numeric(12, 2)" for n in range(_AMOUNT_COLUMNS)),
        )
    ),
)


@dataclass(frozen=True)
class Source:
    """Files of several batches.

    Attributes:
        path: their folder.
        shape: of the rows.
        rows: in each batch.
        batches: how many there are.
        files: in each batch.
    """

    path: Path
    shape: Shape
    rows: int
    batches: int
    files: int = FILES_PER_BATCH

    def first(self, batches: int) -> Source:
        """The first batches only."""
        turns = ",".join(f"{turn:04}" for turn in range(batches))
        return replace(self, path=self.path / f"turn-{{{turns}}}-*", batches=batches)

    def stream(self, spark: SparkSession) -> DataFrame:
        """The files as a stream, one batch at a time in their order."""
        return (
            spark.readStream.schema(self.schema(spark)).option("maxFilesPerTrigger", self.files).parquet(str(self.path))
        )

    def run(self, spark: SparkSession, writer: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
        """Run a query over all batches, and wait for its end."""
        query = (
            self.stream(spark)
            .writeStream.foreachBatch(writer)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of the rows."""
        return spark.range(0).selectExpr("id", "0 AS turn").selectExpr(*self.shape.select).schema


def write_source(
    spark: SparkSession, path: Path, shape: Shape, *, rows: int, batches: int, same_ids: bool = False
) -> Source:
    """Write the files of a source.

    Args:
        spark: the session.
        path: a folder that does not exist yet.
        shape: of the rows.
        rows: in each batch.
        batches: how many.
        same_ids: True when each batch has the ids of the first one, with other values: for upserts.
    """
    for turn in range(batches):
        first = 0 if same_ids else turn * rows
        frame = spark.range(first, first + rows, 1, FILES_PER_BATCH).selectExpr("id", f"{turn} AS turn")
        frame.selectExpr(*shape.select).write.mode("append").parquet(str(path))
        _date_files(path, turn)
    return Source(path, shape, rows, batches)


def date_file(file: Path, turn: int) -> None:
    """A file stream takes the oldest files first: date those of each batch a minute later than those before."""
    moment = _FIRST_FILE_S + turn * 60
    os.utime(file, (moment, moment))


def _date_files(path: Path, turn: int) -> None:
    for file in path.glob("part-*.parquet"):
        date_file(file.rename(file.with_name(f"turn-{turn:04}-{file.name}")), turn)
