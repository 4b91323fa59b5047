"""The check of executors before the first batch: a sentence for each host, in place of a batch that fails three times.

One tiny job has as many tasks as can run at a time, so each executor gets some. It needs nothing but Spark there.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job import gateway_log
from spark_2pc_sink.sink.job.executor_versions import ENCODERS, LIBRARIES, PYSPARK, breaks_tasks, other_encoders
from spark_2pc_sink.sink.job.session_facts import beside_server, is_connect
from spark_2pc_sink.sink.tasks.executor_probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from spark_2pc_sink.sink.stream.listener import StreamListener

_PACKAGE: Final = "spark_2pc_sink"
#: Of the driver. By its name: the package itself is above this module.
_VERSION: Final[str] = import_module(_PACKAGE).__version__
_OPTION: Final = "executors"
REMEDY: Final = "docs/cluster.md shows how executors get a Python with the package, and a way to the driver's port"
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
        missing: why the package cannot be imported there; '' where it can.
        unreached: why it does not reach the driver's port; '' where it does.
        versions: of the libraries, by name; '' where it is not known.
    """

    host: str
    python: str
    version: str
    missing: str
    unreached: str
    versions: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class ExecutorVerdict:
    """What the answers mean for a batch; each a sentence by host, in order.

    Attributes:
        faults: a batch would fail there.
        warnings: what is weaker there than it could be.
    """

    faults: Mapping[str, str]
    warnings: Mapping[str, str]


def check_executors(spark: SparkSession, listener: StreamListener, transactional_id: str, *, tasks: int) -> None:
    """Try all executors, and log what is weak.

    Args:
        spark: a session.
        listener: what they have to reach.
        transactional_id: of the sink, for its log.
        tasks: how many can run at a time.

    Raises:
        ConfigurationError: on some host the sink's tasks cannot run, or cannot reach the driver.
    """
    verdict = try_executors(spark, listener, tasks=tasks)
    log = sink_log(__name__, transactional_id)
    for warning in verdict.warnings.values():
        log.warning("executors: %s", warning)
    if verdict.faults:
        hosts, said = ", ".join(verdict.faults), "; ".join(verdict.faults.values())
        raise ConfigurationError(option=_OPTION, value=hosts, rule=said, remedy=REMEDY)


def try_executors(spark: SparkSession, listener: StreamListener, *, tasks: int) -> ExecutorVerdict:
    """Ask all executors, and judge their answers; see `check_executors`.

    Raises:
        ConfigurationError: the Python of an executor is another minor version, so that it could not be asked.
    """
    return judge(_ask(spark, listener, tasks), _ours(spark))


def judge(answers: Iterable[ExecutorAnswer], ours: Mapping[str, str]) -> ExecutorVerdict:
    """Judge what executors have answered.

    Args:
        answers: of all tasks.
        ours: releases of the driver's libraries, by name.
    """
    found = sorted(answers, key=lambda answer: answer.host)
    return ExecutorVerdict(
        _by_host(found, lambda answer: _fault(answer, ours)),
        _by_host(found, lambda answer: _weakness(answer, ours)),
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


def _fault(answer: ExecutorAnswer, ours: Mapping[str, str]) -> str:
    """Why a batch would fail there, in one sentence; '' where it would not."""
    broken = breaks_tasks(ours, answer.versions)
    if broken:
        return f"{answer.host}: {answer.python} {broken}"
    if answer.missing:
        return f"{answer.host}: {answer.python} cannot import {_PACKAGE}: {answer.missing}"
    if answer.version != _VERSION:
        return f"{answer.host}: {answer.python} has {_PACKAGE} {answer.version}, and the driver {_VERSION}"
    return f"{answer.host}: {answer.unreached}" if answer.unreached else ""


def _weakness(answer: ExecutorAnswer, ours: Mapping[str, str]) -> str:
    """What is weaker there than it could be, in one sentence; '' for nothing."""
    others = other_encoders(ours, answer.versions)
    if not others:
        return ""
    return (
        f"{answer.host}: {answer.python} encodes with other libraries than the driver ({others}): install the same on "
        "both"
    )


def _ours(spark: SparkSession) -> dict[str, str]:
    """Releases that those of executors are compared with.

    A client of Spark Connect runs no tasks: its Spark and its libraries may be others than the server's.
    """
    return {} if is_connect(spark) and not beside_server() else _versions_here()


def _versions_here() -> dict[str, str]:
    """The driver's; of PySpark by itself, as it may come without its metadata."""
    import pyspark  # noqa: PLC0415 - Spark is imported where it is needed

    versions = {PYSPARK: pyspark.__version__}
    for name in ENCODERS:
        # One without metadata, from a zip, is not compared.
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _ask(spark: SparkSession, listener: StreamListener, tasks: int) -> list[ExecutorAnswer]:
    from pyspark import cloudpickle  # noqa: PLC0415 - Spark is imported where it is needed
    from pyspark.sql import functions as F  # noqa: PLC0415

    gateway_log.install()
    with listener.open_attempt() as attempt, naming_executors():
        pickled: bytes = cloudpickle.dumps(attempt.address)  # type: ignore[no-untyped-call]
        # Without Arrow: it may be what is missing.
        asked = F.udf(probe(pickled, LIBRARIES), "string", useArrow=False)
        found = spark.range(0, tasks, 1, tasks).select(asked("id").alias("answer")).collect()
    return [ExecutorAnswer(**json.loads(row.answer)) for row in found]
