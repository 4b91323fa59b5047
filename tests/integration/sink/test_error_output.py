"""What a person sees of a job that fails: cause and remedy once from the sink, and little around what Spark prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import make_url

from spark_2pc_sink.testing.spark import spark_environment
from tests.harness.streams import sink_options

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.spark]
ROOT: Final = Path(__file__).parents[3]
#: As a person writes it, with Spark's own settings of its log.
JOB: Final = """
import json, sys
from pyspark.sql import SparkSession
from spark_2pc_sink import DualWriteSink
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(10).selectExpr("id", "IF(id = 3, 'a' || char(0), 'b') AS name").write.parquet(sys.argv[2] + "/input")
stream = spark.readStream.schema("id BIGINT, name STRING").parquet(sys.argv[2] + "/input")
writer = stream.writeStream.option("checkpointLocation", sys.argv[2] + "/checkpoint").trigger(availableNow=True)
writer.foreachBatch(DualWriteSink(**json.loads(sys.argv[1]))).start().awaitTermination()
"""
#: Spark prints an error of foreachBatch in its own log, as the cause there, and where the program ends; we print one.
REPETITIONS_MAX: Final = 4
#: One frame, of two lines, in each of Spark's tracebacks, of which it prints four.
OUR_FRAMES_MAX: Final = 4
#: Lines in all, without progress bars; 396 before the sink raised its errors once.
LINES_MAX: Final = 150


def run(options: dict[str, Any], folder: Path) -> list[str]:
    """The lines that a job prints to the standard error."""
    (folder / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(folder / "job.py"), json.dumps(options), str(folder)],
        env={**os.environ, **spark_environment(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stderr[-3000:]
    return done.stderr.splitlines()


@pytest.mark.slow
def test_the_error_of_a_job_is_not_buried(
    kafka: Broker,
    topic: MakeTopic,
    database: str,
    transactional_id: str,
    tmp_path: Path,
) -> None:
    """One line of the sink has cause and remedy; Spark's output is bounded in lines and in repetitions."""
    options = sink_options(broker=kafka, database=database, topic=topic(), transactional_id=transactional_id)
    lines = [line for line in run(options, tmp_path) if line.strip() and not line.startswith("[Stage")]
    mine = [line for line in lines if f"{transactional_id}: UnstorableValueError: " in line]
    assert len(mine) == 1
    assert "cannot be stored" in mine[0]
    assert sum("cannot be stored" in line for line in lines) <= REPETITIONS_MAX
    assert sum("spark_2pc_sink/" in line for line in lines) <= OUR_FRAMES_MAX
    assert sum("spark_2pc_sink.errors.UnstorableValueError: " in line for line in lines) == REPETITIONS_MAX - 1
    assert len(lines) <= LINES_MAX, "\n".join(lines)
    assert make_url(database).password is None or str(make_url(database).password) not in "".join(lines)
