"""``python -m tests.harness.class_archive kafka|spark``: make an archive that halves the start of a program.

The Java virtual machine can write the classes that a process has loaded to a file, and map that file at the next
start (application class data sharing, JEP 350). Measured: a broker's start falls from 2.4 to 1.4 s, a Spark session
with its first job from 17 to 10 CPU seconds. An archive belongs to one Java and one set of jars; a virtual machine that
it does not fit ignores it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_2pc_sink.testing import spark as sparks
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM, KafkaBroker, class_archive, find_libs
from spark_2pc_sink.testing.processes import find_java_home
from tests.harness.streams import start_query

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: The dump is written when the virtual machine ends.
_DUMP_DEADLINE_S = 600


def make_kafka_archive() -> None:
    """Run a broker once and keep what it loads. Nothing happens if the archive is there."""
    archive = class_archive(find_libs(), find_java_home())
    if not archive.exists():
        with _written(archive) as option, KafkaBroker(jvm_options=(*QUICK_START_JVM, option)) as broker:
            broker.create_topic("classes")


def make_spark_archive() -> None:
    """Run a small stream in Spark once and keep what that loads. Nothing happens if the archive is there."""
    archive = sparks.class_archive()
    if not archive.exists():
        with _written(archive) as option, tempfile.TemporaryDirectory() as directory:
            options = {"spark.driver.extraJavaOptions": f"{sparks.QUICK_JAVA} {option}"}
            session = sparks.start_spark(Path(directory), settings=options)
            _run_stream(session, Path(directory))
            _end(session)


def _run_stream(spark: SparkSession, directory: Path) -> None:
    """Two batches through what the sink uses of Spark."""

    def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def through_tasks(batch: DataFrame, batch_id: int) -> None:
        del batch_id
        rows = batch.selectExpr("id", "CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
        pieces = rows.mapInArrow(same, rows.schema).repartition(2, "id")
        pieces.mapInArrow(same, rows.schema).toArrow()

    source = str(directory / "source")
    spark.range(0, 100, 1, 2).write.json(source)
    stream = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json(source)
    start_query(stream, through_tasks, directory / "checkpoint").awaitTermination()


def _end(spark: SparkSession) -> None:
    """Stop the session and its virtual machine, which PySpark would leave to the end of this process."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_DUMP_DEADLINE_S)


@contextmanager
def _written(archive: Path) -> Iterator[str]:
    """The option of a virtual machine that writes the archive at its end, which must be inside the block.

    It has a name of our own until then: a program that starts meanwhile sees all of the archive or none.
    """
    unfinished = archive.with_suffix(f".{os.getpid()}")
    yield f"-XX:ArchiveClassesAtExit={unfinished}"
    if unfinished.exists():
        unfinished.rename(archive)


if __name__ == "__main__":
    {"kafka": make_kafka_archive, "spark": make_spark_archive}[sys.argv[1]]()
