"""The check of executors before the first batch: a sentence for each host, in place of a batch that fails three times.

One tiny job has as many tasks as can run at a time, so each executor gets some. It needs nothing but Spark there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.tasks.executor_probe import Sides, probe
from spark_2pc_sink.sink.transfer.staging_tables import StagingSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from spark_2pc_sink.options import SinkOptions

_PACKAGE: Final = "spark_2pc_sink"
#: Of the driver. By its name: the package itself is above this module.
_VERSION: Final[str] = import_module(_PACKAGE).__version__
_OPTION: Final = "executors"
_REMEDY: Final = (
    "docs/cluster.md shows how executors get a Python with the package; they need ways to the brokers' advertised "
    "listeners and, for batches whose rows are staged, to the database"
)
#: Of PySpark's worker, where its Python is another minor version than the driver's.
_OTHER_PYTHON: Final = "PYTHON_VERSION_MISMATCH"


@dataclass(frozen=True)
class ExecutorAnswer:
    """What a task has found in its executor.

    Attributes:
        host: its name.
        python: path of its Python.
        version: of the package; '' where it is not there.
        missing: why the package cannot be imported there; '' where it can.
        unreached: by the side, ``kafka`` or ``database``, why it was not reached.
    """

    host: str
    python: str
    version: str
    missing: str
    unreached: Mapping[str, str] = field(hash=False)

    def fault(self, *, must_stage: bool) -> str:
        """Why a batch would fail there, in one sentence; '' where it would not.

        Args:
            must_stage: tasks cannot do without the database.
        """
        if self.missing:
            return f"{self.host}: {self.python} cannot import {_PACKAGE}: {self.missing}"
        if self.version != _VERSION:
            return f"{self.host}: {self.python} has {_PACKAGE} {self.version}, and the driver {_VERSION}"
        sides = ("kafka", "database") if must_stage else ("kafka",)
        unreached = [f"does not reach {side} ({self.unreached[side]})" for side in sides if side in self.unreached]
        return f"{self.host}: {' and '.join(unreached)}" if unreached else ""


def check_executors(spark: SparkSession, options: SinkOptions, *, tasks: int, can_send: bool) -> None:
    """Try all executors.

    Args:
        spark: a session.
        options: of the sink.
        tasks: how many can run at a time.
        can_send: tasks can bring their rows to the driver; else they stage all of them.

    Raises:
        ConfigurationError: on some host the sink's tasks cannot run, or cannot reach a side that they need.
    """
    given = options.inline_copy_bytes_max
    judge(_ask(spark, options, tasks), must_stage=not (can_send and given), transactional_id=options.transactional_id)


def judge(answers: Iterable[ExecutorAnswer], *, must_stage: bool, transactional_id: str) -> None:
    """Refuse executors on which a batch would fail; warn of one that fails only with many rows.

    Args:
        answers: of all tasks.
        must_stage: no limit was given below which rows need no database.
        transactional_id: of the sink, for its log.

    Raises:
        ConfigurationError: with one sentence for each host.
    """
    by_host: dict[str, str] = {}
    for answer in answers:
        by_host[answer.host] = by_host.get(answer.host) or answer.fault(must_stage=must_stage)
        if not must_stage and "database" in answer.unreached:
            sink_log(__name__, transactional_id).warning(
                "executors on %s do not reach the database (%s): batches with more rows than inline_copy_bytes_max "
                "will fail",
                answer.host,
                answer.unreached["database"],
            )
    faults = {host: fault for host, fault in sorted(by_host.items()) if fault}
    if faults:
        raise ConfigurationError(
            option=_OPTION, value=", ".join(faults), rule="; ".join(faults.values()), remedy=_REMEDY
        )


def _ask(spark: SparkSession, options: SinkOptions, tasks: int) -> list[ExecutorAnswer]:
    from pyspark import cloudpickle  # noqa: PLC0415 - Spark is imported where it is needed
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    session = StagingSession(
        database=options.database,
        application_name=options.transactional_id,
        connect_timeout_s=options.connect_timeout_s,
        lock_timeout_ms=options.lock_timeout_ms,
        statement_timeout_ms=options.statement_timeout_ms,
        password=options.password_source,
    )
    has_table = any(lane.rows is not None for lane in options.lanes)
    sides = Sides(options.kafka, tuple(options.topics), session if has_table else None)
    # Without Arrow: it may be what is missing.
    pickled: bytes = cloudpickle.dumps(sides)  # type: ignore[no-untyped-call]
    asked = F.udf(probe(pickled), "string", useArrow=False)
    try:
        found = spark.range(0, tasks, 1, tasks).select(asked("id").alias("answer")).collect()
    except PySparkException as error:
        said = str(error)
        if _OTHER_PYTHON in said:
            said = next(line.strip() for line in said.splitlines() if _OTHER_PYTHON in line)
            raise ConfigurationError(option=_OPTION, value="their Python", rule=said, remedy=_REMEDY) from error
        raise
    return [ExecutorAnswer(**json.loads(row.answer)) for row in found]
