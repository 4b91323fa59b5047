"""Streaming queries over files: a batch per file, in a known order, run to the end of what is there.

And the settings of their Spark session, changed for a while.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.errors import StreamingQueryException

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import DualWriteError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType


QUERY_DEADLINE_S = 100
#: The time of the first file; each batch is a second later, however fast they are added.
_FIRST_S = 1_700_000_000


def start_query(stream: DataFrame, sink: Any, checkpoint: Path | str, *, follow: bool = False) -> StreamingQuery:
    """Start a query that ends when it has handed over what is there now, or that follows what comes."""
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer if follow else writer.trigger(availableNow=True)).start()


_arrow_schemas: dict[str, pa.Schema] = {}


def arrow_schema(spark: SparkSession, schema: StructType) -> pa.Schema:
    """How Arrow has the rows of a schema; Spark is asked once for each."""
    name = schema.json()
    if name not in _arrow_schemas:
        _arrow_schemas[name] = spark.createDataFrame([], schema).toArrow().schema
    return _arrow_schemas[name]


@dataclass
class FileStream:
    """A directory whose files are read as a stream, one per batch, and the checkpoint of the query that does."""

    spark: SparkSession
    directory: Path
    schema: StructType
    files: int = field(default=0, init=False)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def add(self, rows: list[tuple[Any, ...]], *, partitions: int = 1) -> None:
        """Add the rows of one batch, in as many files as it has partitions."""
        target = self.directory / "input"
        target.mkdir(exist_ok=True)
        schema = arrow_schema(self.spark, self.schema)
        share = -(-len(rows) // partitions) or 1
        for part in range(partitions):
            values = rows[part * share : (part + 1) * share]
            columns = zip(*values, strict=True) if values else ((),) * len(schema)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            # A hidden file is none of the stream's until it is complete. Spark reads files in the order of their times.
            unfinished = target / f".{self.files:06d}"
            parquet.write_table(pa.table(arrays, schema=schema), unfinished)
            os.utime(unfinished, (_FIRST_S + self.files, _FIRST_S + self.files))
            unfinished.rename(target / f"{self.files:06d}-{part}.parquet")
        self.files += 1

    def forget(self, batch: int) -> None:
        """Take from the checkpoint that Spark has seen the batch end: it comes again."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()

    def frame(self, *, files_per_batch: int = 1) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", files_per_batch)
        return reader.parquet(str(self.directory / "input"))

    def run(self, sink: Any, frame: DataFrame | None = None) -> None:
        failures: list[BaseException] = []
        stream = self.frame() if frame is None else frame
        query = start_query(stream, _Recorder(sink, failures), self.checkpoint)
        try:
            if not query.awaitTermination(QUERY_DEADLINE_S):
                message = f"the query did not end within {QUERY_DEADLINE_S} s"
                raise AssertionError(message)
        except StreamingQueryException:
            if failures and isinstance(failures[0], DualWriteError):
                raise failures[0] from None
            raise
        finally:
            query.stop()


class _Recorder:
    """Spark turns exceptions of the Python side to text; this keeps the exception itself."""

    def __init__(self, sink: Any, failures: list[BaseException]) -> None:
        self._sink = sink
        self._failures = failures

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._sink(batch, batch_id)
        except BaseException as error:
            self._failures.append(error)
            raise


def sink_options(
    *, broker: Any, database: str, transactional_id: str, topic: str | None, **options: Any
) -> dict[str, Any]:
    """Options of a sink as a user writes them: of one topic and one table, or with ``writes``."""
    one = {} if "writes" in options else {"topic": topic, "table": "public.target", "create_table": True}
    kafka = {"bootstrap.servers": broker.bootstrap}
    return {"transactional_id": transactional_id, "kafka": kafka, "database": database, **one, **options}


def make_sink(**options: Any) -> DualWriteSink:
    return DualWriteSink(**sink_options(**options))


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Change settings (None: as if nobody had set it), and put back the values that were there."""
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))
