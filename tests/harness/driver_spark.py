"""A driver that is a real streaming query in Spark."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.sink.table.copy_stream import CopyReader
from spark_2pc_sink.testing.spark import start_spark
from tests.harness.driver_config import DriverConfig, Journal
from tests.harness.driver_faults import Faults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_ROOT = Path(__file__).resolve().parents[2]
#: It needs no connector.
_SETTINGS = {"spark.jars": "", "spark.sql.shuffle.partitions": "2"}
#: The read of COPY's input in which a part of the rows has been sent: the first is its header, the second has rows.
_READ_WITH_ROWS_SENT = 3


class WatchedSink(DualWriteSink):
    """The sink, telling which batch it writes and how it ended."""

    def __init__(self, journal: Journal, faults: Faults, **options: Any) -> None:
        super().__init__(**options)
        self._journal = journal
        self._faults = faults
        self.failed = False

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch."""
        self._faults.batch = batch_id
        try:
            super().__call__(batch, batch_id)
        except Exception as error:
            self._journal.write_error(error)
            self.failed = True
            raise
        self._journal.write("batch", batch=batch_id)


def run_query(config: DriverConfig, journal: Journal, faults: Faults) -> bool:
    """Run the query over all files of the input, one in each batch, and wait for its end.

    Returns:
        False when the sink raised an error, which is in the journal then.

    Raises:
        StreamingQueryException: the query failed for another reason.
    """
    stop_inside_copy(faults)
    spark = start_spark(Path(config.checkpoint).parent / "spark", python_path=_ROOT, quick=True, settings=_SETTINGS)
    journal.write("spark", version=spark.version)
    sink = WatchedSink(journal, faults, **config.sink)
    try:
        start_query(spark, config.input, config.checkpoint, sink).awaitTermination()
    except StreamingQueryException:
        if not sink.failed:
            raise
        return False
    finally:
        spark.stop()
    return True


def start_query(spark: SparkSession, folder: str, checkpoint: str, sink: DualWriteSink) -> StreamingQuery:
    """Start the query over the files of ``folder``: one file is one batch, in the order of the files' times."""
    stream = spark.readStream.schema("id BIGINT, payload STRING").option("maxFilesPerTrigger", 1).json(folder)
    return (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def stop_inside_copy(faults: Faults) -> None:
    """Reach the place ``copy`` when COPY asks for more after its first rows."""
    read = CopyReader.read
    reads: Counter[int] = Counter()

    @functools.wraps(read)
    def wrapped(self: CopyReader, size: int) -> bytes:
        reads[faults.batch] += 1
        if reads[faults.batch] == _READ_WITH_ROWS_SENT:
            faults.reached("copy")
        return read(self, size)

    setattr(CopyReader, "read", wrapped)  # noqa: B010 - a method is not assignable for type checkers
