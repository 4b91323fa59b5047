"""The check of executors before the first batch: a sentence for each host, in place of a batch that fails three times.

One tiny job has as many tasks as can run at a time, so each executor gets some. It needs nothing but Spark there.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job import gateway_log
from spark_2pc_sink.sink.job.executor_versions import ENCODERS, LIBRARIES, PYSPARK, breaks_tasks, other_encoders
from spark_2pc_sink.sink.job.session_facts import beside_server, is_connect
from spark_2pc_sink.sink.tasks.executor_probe import Sides, probe, reach
from spark_2pc_sink.sink.transfer.staging_tables import StagingSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from spark_2pc_sink.options import KafkaOptions, SinkOptions

_PACKAGE: Final = "spark_2pc_sink"
#: Of the driver. By its name: the package itself is above this module.
_VERSION: Final[str] = import_module(_PACKAGE).__version__
_OPTION: Final = "executors"
REMEDY: Final = (
    "docs/cluster.md shows how executors get a Python with the package; they need ways to the brokers' advertised "
    "listeners and, for batches whose rows are staged, to the database"
)
_KERBEROS: Final = (
    "For Kerberos pass --conf spark.executorEnv.KRB5_CLIENT_KTNAME with a keytab on each node, or "
    "spark.executorEnv.KRB5CCNAME; docs/logins.md"
)
#: What Python says of a module that is missing, PySpark's worker of a Python of another minor version, and Java of a
#: Python that is not there.
_BROKEN_PYTHON: Final = re.compile(
    r"ModuleNotFoundError: (No module named '[^']+')|(\[PYTHON_VERSION_MISMATCH\][^\n]*|Cannot run program \"[^\n]*)"
)
#: As Spark names the executor of a task in the error of a job.
_LOST_TASK: Final = re.compile(r"\(TID \d+\) \((\S+) executor")


@dataclass(frozen=True)
class ExecutorAnswer:
    """What a task has found in its executor.

    Attributes:
        host: its name.
        python: path of its Python.
        version: of the package; '' where it is not there.
        versions: of the libraries, by name; '' where it is not known.
        missing: why the package cannot be imported there; '' where it can.
        unreached: by the side, ``kafka`` or ``database``, why it was not reached.
    """

    host: str
    python: str
    version: str
    missing: str
    versions: Mapping[str, str] = field(hash=False)
    unreached: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class ExecutorVerdict:
    """What the answers mean for a batch; each a sentence by host, in order.

    Attributes:
        faults: a batch would fail there.
        warnings: what is weaker there than it could be.
    """

    faults: Mapping[str, str]
    warnings: Mapping[str, str]


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
    refuse_faults(try_executors(spark, options, tasks=tasks, can_send=can_send), options)


def check_late_executors(spark: SparkSession, options: SinkOptions, *, tasks: int, can_send: bool) -> bool:
    """Try all executors in the middle of a run.

    A side that the driver does not reach either is down: its batch waits for it, and no executor is to blame.

    Returns:
        False where that was so, and what executors reach is still to be found out.

    Raises:
        ConfigurationError: see `check_executors`.
    """
    sides = _sides(options)
    answers = _ask(spark, sides, tasks)
    down = reach(sides).keys() if any(answer.unreached for answer in answers) else frozenset[str]()
    excused = [
        replace(answer, unreached={side: why for side, why in answer.unreached.items() if side not in down})
        for answer in answers
    ]
    verdict = judge(excused, _ours(spark), must_stage=_must_stage(options, can_send=can_send))
    refuse_faults(verdict, options)
    return not down


def refuse_faults(verdict: ExecutorVerdict, options: SinkOptions) -> None:
    """Log what is weak, and refuse executors where a batch would fail.

    Raises:
        ConfigurationError: there are such.
    """
    log = sink_log(__name__, options.transactional_id)
    for warning in verdict.warnings.values():
        log.warning("executors: %s", warning)
    if verdict.faults:
        hosts, said = ", ".join(verdict.faults), "; ".join(verdict.faults.values())
        raise ConfigurationError(option=_OPTION, value=hosts, rule=said, remedy=remedy_for(options.kafka))


def remedy_for(kafka: KafkaOptions) -> str:
    """How executors get what they lack.

    Args:
        kafka: how they log in to the brokers.
    """
    return f"{REMEDY}. {_KERBEROS}" if kafka.sasl_mechanism == "GSSAPI" else REMEDY


def try_executors(spark: SparkSession, options: SinkOptions, *, tasks: int, can_send: bool) -> ExecutorVerdict:
    """Ask all executors, and judge their answers; see `check_executors`.

    Raises:
        ConfigurationError: the Python of an executor is another minor version, so that it could not be asked.
    """
    answers = _ask(spark, _sides(options), tasks)
    return judge(answers, _ours(spark), must_stage=_must_stage(options, can_send=can_send))


def judge(answers: Iterable[ExecutorAnswer], ours: Mapping[str, str], *, must_stage: bool) -> ExecutorVerdict:
    """Judge what executors have answered.

    Args:
        answers: of all tasks.
        ours: releases of the driver's libraries, by name.
        must_stage: no limit was given below which rows need no database.
    """
    found = sorted(answers, key=lambda answer: answer.host)
    return ExecutorVerdict(
        _by_host(found, lambda answer: _fault(answer, ours, must_stage=must_stage)),
        _by_host(found, lambda answer: _weakness(answer, ours, must_stage=must_stage)),
    )


@contextmanager
def naming_executors(try_all: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Name the host where a job has failed because of the Python there.

    Args:
        try_all: called first: it may raise what says the same of every host. The one of the job may be gone by then.

    Raises:
        ConfigurationError: so it was. Another attempt would not help.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except PySparkException as error:
        refused = broken_python(str(error))
        if refused is None:
            raise
        try_all()
        raise refused from error


def broken_python(said: str) -> ConfigurationError | None:
    """The error of a job that the Python of an executor could not run; None for any other.

    Args:
        said: by Spark about the job.
    """
    broken = _BROKEN_PYTHON.search(said)
    if broken is None:
        return None
    lost = _LOST_TASK.search(said)
    host = lost[1] if lost else "an executor"
    return ConfigurationError(option=_OPTION, value=host, rule=f"{host}: {broken[1] or broken[2]}", remedy=REMEDY)


def _by_host(answers: Iterable[ExecutorAnswer], say: Callable[[ExecutorAnswer], str]) -> dict[str, str]:
    """The first sentence of each host, where there is one: its executors say the same."""
    said: dict[str, str] = {}
    for answer in answers:
        said[answer.host] = said.get(answer.host) or say(answer)
    return {host: sentence for host, sentence in said.items() if sentence}


def _fault(answer: ExecutorAnswer, ours: Mapping[str, str], *, must_stage: bool) -> str:
    """Why a batch would fail there, in one sentence; '' where it would not."""
    broken = breaks_tasks(ours, answer.versions)
    if broken:
        return f"{answer.host}: {answer.python} {broken}"
    if answer.missing:
        return f"{answer.host}: {answer.python} cannot import {_PACKAGE}: {answer.missing}"
    if answer.version != _VERSION:
        return f"{answer.host}: {answer.python} has {_PACKAGE} {answer.version}, and the driver {_VERSION}"
    sides = ("kafka", "database") if must_stage else ("kafka",)
    unreached = [f"does not reach {side} ({answer.unreached[side]})" for side in sides if side in answer.unreached]
    return f"{answer.host}: {' and '.join(unreached)}" if unreached else ""


def _weakness(answer: ExecutorAnswer, ours: Mapping[str, str], *, must_stage: bool) -> str:
    """What is weaker there than it could be, in one sentence; '' for nothing."""
    said = []
    if not must_stage and "database" in answer.unreached:
        why = answer.unreached["database"]
        said.append(f"does not reach the database ({why}), so batches above inline_copy_bytes_max will fail")
    others = other_encoders(ours, answer.versions)
    if others:
        said.append(
            f"{answer.python} encodes with other libraries than the driver ({others}): install the same on both"
        )
    return f"{answer.host}: {' and '.join(said)}" if said else ""


def _ours(spark: SparkSession) -> dict[str, str]:
    """Releases that those of executors are compared with.

    A client of Spark Connect runs no tasks: its Spark and its libraries may be others than the server's.
    """
    return {} if is_connect(spark) and not beside_server() else _versions_here()


def _must_stage(options: SinkOptions, *, can_send: bool) -> bool:
    return not (can_send and options.inline_copy_bytes_max)


def _versions_here() -> dict[str, str]:
    """The driver's; of PySpark by itself, as it may come without its metadata."""
    import pyspark  # noqa: PLC0415 - Spark is imported where it is needed

    versions = {PYSPARK: pyspark.__version__}
    for name in ENCODERS:
        # One without metadata, from a zip, is not compared.
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _sides(options: SinkOptions) -> Sides:
    session = StagingSession.of(options, options.transactional_id)
    has_table = any(lane.rows is not None for lane in options.lanes)
    return Sides(options.kafka, tuple(options.topics), session if has_table else None)


def _ask(spark: SparkSession, sides: Sides, tasks: int) -> list[ExecutorAnswer]:
    from pyspark import cloudpickle  # noqa: PLC0415 - Spark is imported where it is needed
    from pyspark.sql import functions as F  # noqa: PLC0415

    gateway_log.install()
    # Without Arrow: it may be what is missing.
    pickled: bytes = cloudpickle.dumps(sides)  # type: ignore[no-untyped-call]
    asked = F.udf(probe(pickled, LIBRARIES), "string", useArrow=False)
    with naming_executors():
        found = spark.range(0, tasks, 1, tasks).select(asked("id").alias("answer")).collect()
    return [ExecutorAnswer(**json.loads(row.answer)) for row in found]
