"""Frames that are no streams, under numbers by hand: `DualWriteSink.write`, on real Kafka and real PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink.errors import ClaimRefusedError, ConfigurationError, HaltCause
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.recipe.steps import Step
from tests.harness import backfill_main
from tests.harness.halts import halts
from tests.integration.sink.targets import SCHEMA, Row, Target, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from spark_2pc_sink import DualWriteSink
    from tests.harness.streams import FileStream

ROOT = Path(__file__).parents[3]


@pytest.fixture
def sink_of(target: Target) -> Iterator[Callable[..., DualWriteSink]]:
    """Makes sinks of the test's target, as each start of a backfill makes one, and closes them."""
    with ExitStack() as made:
        yield lambda **options: made.enter_context(closing(target.sink(key="id", **options)))


def write(spark: SparkSession, sink: DualWriteSink, batch_id: int, rows: list[Row]) -> Placement:
    report = sink.write(spark.createDataFrame(rows, SCHEMA), batch_id=batch_id)
    assert report.batch_id == batch_id
    assert report.row_count == (len(rows) if report.placement is Placement.RUN else 0)
    return report.placement


def test_other_rows_under_a_number_halt_whether_it_is_the_last_or_not(
    spark: SparkSession, target: Target, sink_of: Callable[..., DualWriteSink]
) -> None:
    """They would be on no side."""
    sink = sink_of()
    for number in (1, 2):
        write(spark, sink, number, rows_of(number, 10))
    for number in (1, 2):
        with halts(HaltCause.REPLAY_DIFFERS, match=f"batch {number} with 10 records"):
            write(spark, sink_of(), number, rows_of(number, 9))
    target.check(rows_of(1, 10) + rows_of(2, 10))


def test_a_number_that_was_passed_and_never_written_is_refused(
    spark: SparkSession, target: Target, sink_of: Callable[..., DualWriteSink]
) -> None:
    sink = sink_of()
    for number in (1, 5):
        write(spark, sink, number, rows_of(number, 10))
    with pytest.raises(ConfigurationError, match=r"ids must ascend: the last one was 5, .* no batch 3.*above 5"):
        write(spark, sink, 3, rows_of(3, 10))
    target.check(rows_of(1, 10) + rows_of(5, 10))


def test_a_stream_s_sink_is_not_a_backfill_s(
    spark: SparkSession, stream: FileStream, target: Target, sink_of: Callable[..., DualWriteSink]
) -> None:
    """One id has one owner: the numbers of both would be mixed."""
    stream.add(rows_of(0, 10))
    sink = sink_of()
    stream.run(sink)
    with pytest.raises(ClaimRefusedError, match="backfill of"):
        write(spark, sink, 1, rows_of(1, 10))
    target.check(rows_of(0, 10))


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", [Step.PREPARE, Step.DECIDE, Step.COMPLETE], ids=lambda step: step.name)
def test_a_backfill_that_is_killed_is_begun_again(target: Target, tmp_path: Path, step: Step) -> None:
    """SIGKILL in the second of three numbers; the same command once more, and both sides have each row once."""
    sides = [target.broker.bootstrap, target.database, target.transactional_id, target.topic, str(tmp_path)]
    killed = ["-m", "spark_2pc_sink.testing.killed_job", step.name, "2"]
    for start, code in ((killed, -signal.SIGKILL), ([], 0)):
        done = subprocess.run(
            [sys.executable, *start, backfill_main.__file__, *sides],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr[-3000:]
    target.check([row for number in backfill_main.NUMBERS for row in rows_of(number)])
