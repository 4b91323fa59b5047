"""A driver that is a streaming query in Spark: over files of rows, or the orders example."""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_2pc_sink import DualWriteSink, run_until_stopped
from spark_2pc_sink.options.sources import outputs_of_tables
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.sink.job_end import EXIT_STOPPED
from spark_2pc_sink.sink.rows.table_copy import CopyReader
from spark_2pc_sink.testing.spark import quick_java_options, start_spark
from tests.harness import ROOT, streams
from tests.harness.driver_config import ROWS, DriverConfig, Faults, Journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: From SIGTERM to the end of the query.
GRACE_S = 10.0
#: The query over files needs no connector.
_SETTINGS = {"spark.jars": "", "spark.sql.shuffle.partitions": "2"}
#: A task is tried four times, as in a cluster: its Python worker may be killed.
_TASK_RETRIES = {"spark.master": "local[2,4]"}
#: Executors of one core, two of them at a time, so that a second driver finds room beside a stopped one.
_EXAMPLE_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}
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
        self._faults.batch = batch_id
        try:
            super().__call__(batch, batch_id)
        except Exception as error:
            self._journal.write_error(error)
            self.failed = True
            raise
        self._journal.write("batch", batch=batch_id)


def run_query(config: DriverConfig, journal: Journal, faults: Faults) -> bool:
    """Run the query over all files of the input, and wait for its end; of an input that grows there is none.

    Returns:
        False when the sink raised an error, which is in the journal then.
    """
    stop_inside_copy(faults)
    if config.by_tasks:
        setattr(SmallBatches, "expected", False)  # noqa: B010 - a property is not assignable for type checkers
    settings = {**_SETTINGS, **_TASK_RETRIES} if config.follow else _SETTINGS
    spark = start_spark(Path(config.checkpoint).parent / "spark", python_path=ROOT, quick=True, settings=settings)
    journal.write("spark", version=spark.version)
    # Outputs are tables, as a file of the configuration has them.
    writes = {"writes": outputs_of_tables(config.sink["writes"])} if "writes" in config.sink else {}
    sink = WatchedSink(journal, faults, **{**config.sink, **writes})
    stream = _files(spark, config.input, config.schema, config.files_per_batch)
    try:
        query = streams.start_query(stream, sink, config.checkpoint, follow=config.follow)
        code = run_until_stopped(query, grace_s=GRACE_S)
        journal.write("code", code=code)
        failed = query.exception()
    finally:
        spark.stop()
    if failed is not None and not sink.failed:
        raise failed
    # A batch that began after SIGTERM is interrupted by the stop, and the next start repeats it.
    return code == EXIT_STOPPED or not sink.failed


def start_query(spark: SparkSession, folder: str, checkpoint: str, sink: DualWriteSink) -> StreamingQuery:
    """Start the query over the files of ``folder``: one file is one batch, in the order of the files' times."""
    return streams.start_query(_files(spark, folder, ROWS, 1), sink, checkpoint)


def _files(spark: SparkSession, folder: str, schema: str, files_per_batch: int) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).json(folder)


def run_example(config: DriverConfig, journal: Journal, faults: Faults) -> bool:
    """Run examples/orders_job.py as a user would, with the command line of ``config``, until it ends.

    Returns:
        False when the sink raised an error, which is in the journal then, or when the example's own comparison of
        both sides has found a difference.
    """
    sys.path.insert(0, str(ROOT / "examples"))
    import orders_job  # noqa: PLC0415 - an example is no package

    stop_inside_copy(faults)
    java = dict.fromkeys(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), quick_java_options())
    settings = " ".join(f"--conf '{name}={value}'" for name, value in {**_EXAMPLE_SETTINGS, **java}.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{settings} pyspark-shell"
    sinks: list[WatchedSink] = []

    def make_sink(**options: object) -> WatchedSink:
        sinks.append(WatchedSink(journal, faults, **options))
        return sinks[-1]

    setattr(orders_job, "DualWriteSink", make_sink)  # noqa: B010 - a class is not assignable for type checkers
    try:
        status = orders_job.main(config.example)
    except Exception:
        if any(sink.failed for sink in sinks):
            return False
        raise
    if status:
        journal.write("error", type="Difference", text=f"the example ended with {status}")
    return status == 0


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
