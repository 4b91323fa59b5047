"""The executors: each is tested before the first batch, and new ones before the next attempt of a batch.

One tiny job has as many tasks as can run at a time, so each executor gets some. It needs only Spark there, and reports
one sentence per host, instead of a batch that fails three times.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module, metadata
from typing import Final

import pyspark
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.sink.job.session_facts import (
    SessionFacts,
    beside_server,
    has_executors,
    has_other_python,
    install_log_filter,
    is_connect,
    local_workers_python,
)
from spark_2pc_sink.sink.stream.listener import StreamEndpoint, StreamListener

PYSPARK: Final = "pyspark"
#: Libraries that encode rows and records, by distribution name.
ENCODERS: Final = ("pyarrow", "numpy", "pgpq", "kafka-python", "lz4", "google-crc32c", "xxhash")
LIBRARIES: Final = (PYSPARK, *ENCODERS)


def probe(address: bytes, libraries: tuple[str, ...]) -> Callable[[int], str]:
    """The function that a task calls; it returns JSON: can this Python run the sink's tasks, and reach the driver?

    Spark pickles a nested function with everything that it contains. So it also runs if the package is missing there,
    as long as it imports nothing from it before the call. ``address`` is a pickled `StreamAddress`, unknown there.
    """

    def run(_: int) -> str:
        import importlib.metadata  # noqa: PLC0415 - this function is all that the executor has
        import json  # noqa: PLC0415
        import pickle  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415

        versions = {}
        for name in libraries:
            # A library may be a zip without metadata. Spark's own may be, but PySpark has its release as an attribute.
            loaded = sys.modules.get(name)
            try:
                versions[name] = str(getattr(loaded, "__version__", "")) or importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                versions[name] = ""
        answer = {"host": socket.gethostname(), "python": sys.executable, "version": "", "missing": "", "unreached": ""}
        try:
            answer["version"] = importlib.import_module("spark_2pc_sink").__version__
            stream = importlib.import_module("spark_2pc_sink.sink.stream.task_stream")
            importlib.import_module("spark_2pc_sink.sink.job.encode_task")
        except ImportError as error:
            answer["missing"] = str(error)
        else:
            answer["unreached"] = stream.unreachable(pickle.loads(address)) or ""  # noqa: S301 - by our own driver
        return json.dumps({**answer, "versions": versions})

    return run


def _first(release: str, parts: int) -> str:
    return ".".join(release.split(".")[:parts])


_PACKAGE: Final = "spark_2pc_sink"
#: The driver's release, by name: the package itself is above this module.
_VERSION: Final[str] = import_module(_PACKAGE).__version__
#: Environment variable with the Python of Spark's workers.
_WORKERS: Final = "PYSPARK_PYTHON"
#: Errors of Python for a missing module, of PySpark's worker for a different minor Python version, and of Java for a
#: missing Python.
_BROKEN_PYTHON: Final = re.compile(
    r"ModuleNotFoundError: (No module named '[^']+')|(\[PYTHON_VERSION_MISMATCH\][^\n]*|Cannot run program \"[^\n]*)"
)
#: Spark's name of the task's executor in a job error.
_LOST_TASK: Final = re.compile(r"\(TID \d+\) \((\S+) executor")


@dataclass(frozen=True)
class ExecutorAnswer:
    """A task's findings in its executor.

    Attributes:
        version: version of the package; '' if it is missing.
        missing: why the package cannot be imported there; '' if it can.
        unreached: why it cannot reach the driver's port; '' if it can.
    """

    host: str
    python: str
    version: str
    missing: str
    unreached: str
    versions: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class ExecutorVerdict:
    """Consequences of the answers for a batch; each is a sentence by host, in order."""

    faults: Mapping[str, str]
    warnings: Mapping[str, str]


def try_executors(spark: SparkSession, listener: StreamListener, *, tasks: int) -> ExecutorVerdict:
    install_log_filter()
    with listener.open_attempt() as attempt, naming_executors(spark):
        pickled: bytes = cloudpickle.dumps(attempt.address)  # type: ignore[no-untyped-call]
        # Without Arrow: it may be the missing library.
        asked = F.udf(probe(pickled, LIBRARIES), "string", useArrow=False)
        found = spark.range(0, tasks, 1, tasks).select(asked("id").alias("answer")).collect()
    return judge((ExecutorAnswer(**json.loads(row.answer)) for row in found), _ours(spark))


def judge(answers: Iterable[ExecutorAnswer], ours: Mapping[str, str]) -> ExecutorVerdict:
    """The first sentence of each host: its executors report the same."""
    faults: dict[str, str] = {}
    warnings: dict[str, str] = {}
    for answer in sorted(answers, key=lambda answer: answer.host):
        for said, say in ((faults, _fault), (warnings, _weakness)):
            if answer.host not in said and (sentence := say(answer, ours)):
                said[answer.host] = sentence
    return ExecutorVerdict(faults, warnings)


def remedy_for(spark: SparkSession) -> str:
    """How the workers get a Python that can run the sink's tasks."""
    if local_workers_python(spark):
        own = shlex.quote(sys.executable)
        return f"set {_WORKERS}={own}, which is the job's own Python, before the Spark session starts"
    return "docs/cluster.md shows how executors get a Python with the package, and a way to the driver's port"


def _refusal(spark: SparkSession, hosts: str, said: str) -> ConfigurationError:
    local = local_workers_python(spark)
    option, value = (_WORKERS, local) if local else ("executors", hosts)
    return ConfigurationError(option=option, value=value, rule=said, remedy=remedy_for(spark))


@contextmanager
def naming_executors(spark: SparkSession, try_all: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Name the host if a job has failed because of its Python.

    Args:
        try_all: called first: it may raise the same finding for every host. The job's executor may be gone by then.
    """
    try:
        yield
    except PySparkException as error:
        said = str(error)
        broken = _BROKEN_PYTHON.search(said)
        if broken is None:
            raise
        try_all()
        lost = _LOST_TASK.search(said)
        host = lost[1] if lost else "an executor"
        raise _refusal(spark, host, f"{host}: {broken[1] or broken[2]}") from error


def _fault(answer: ExecutorAnswer, ours: Mapping[str, str]) -> str:
    """Why a batch would fail there, in one sentence; '' if it would not. Unknown releases are not compared."""
    here, there = ours.get(PYSPARK, ""), answer.versions.get(PYSPARK, "")
    python = f"{answer.host}: {answer.python}"
    # Driver and worker use a protocol that changes with the minor release.
    if here and there and _first(here, 2) != _first(there, 2):
        return f"{python} has {PYSPARK} {there}, and the driver {here}"
    if answer.missing:
        return f"{python} cannot import {_PACKAGE}: {answer.missing}"
    if answer.version != _VERSION:
        return f"{python} has {_PACKAGE} {answer.version}, and the driver {_VERSION}"
    return f"{answer.host}: {answer.unreached}" if answer.unreached else ""


def _weakness(answer: ExecutorAnswer, ours: Mapping[str, str]) -> str:
    """The encoding libraries of another major release, in one sentence; '' if there are none.

    A batch may still be written: no library rules that out.
    """
    others = []
    for name in ENCODERS:
        here, there = ours.get(name, ""), answer.versions.get(name, "")
        # Release 0.12.1 promises no more to 0.13 than 1.2 to 2.0.
        parts = 2 if here.startswith("0.") else 1
        if here and there and _first(here, parts) != _first(there, parts):
            others.append(f"{name} {there} for {here}")
    if not others:
        return ""
    return (
        f"{answer.host}: {answer.python} encodes with other libraries than the driver ({', '.join(others)}): install "
        "the same on both"
    )


def _ours(spark: SparkSession) -> dict[str, str]:
    """Releases with which those of executors are compared. PySpark's package metadata may be missing.

    A client of Spark Connect runs no tasks: its Spark and its libraries may differ from the server's.
    """
    if is_connect(spark) and not beside_server():
        return {}
    versions = {PYSPARK: pyspark.__version__}
    for name in ENCODERS:
        # A library without metadata, from a zip, is not compared.
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


#: Executors of an application that have passed the check for an endpoint: other queries do not test them again. One may
#: have lost its connection to the driver since then, so this is cleared after a batch has failed for good.
passed_executors: Final[dict[tuple[str, StreamEndpoint], frozenset[str]]] = {}


class ExecutorWatch:
    """Tests executors for one run of a query; with a local master only if a task of a batch could not run."""

    def __init__(
        self, spark: SparkSession, transactional_id: str, facts: SessionFacts, listener: StreamListener
    ) -> None:
        self._spark = spark
        self._transactional_id = transactional_id
        self._facts = facts
        self._listener = listener
        self._has_executors = has_executors(spark)
        self._tried: frozenset[str] = frozenset()
        self._log = sink_log(__name__, transactional_id)

    def begin(self) -> None:
        """Test all of them before the first batch, unless the same ones have already passed for the same endpoint."""
        if not self._has_executors:
            return
        known, key = self._facts.executors(), (self._facts.application(), self._listener.endpoint)
        if known is None or known != passed_executors.get(key):
            self._check()
        if known is not None:
            self._tried = passed_executors[key] = known

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Begin while a block queries on the driver: neither makes changes, and neither waits for the other.

        An error of the block takes precedence, after the job of `begin` has ended.
        """
        if not self._has_executors:
            yield
            return
        # Log lines of the thread carry the sink's id, too.
        begin = partial(copy_context().run, self.begin)
        with ThreadPoolExecutor(1, "spark_2pc_sink executors") as threads:
            begun = threads.submit(self._facts.inheriting(begin))
            yield
            begun.result()

    def check_new(self) -> None:
        """Test them again if some have joined; at the beginning of each attempt of a batch."""
        known = self._facts.executors() if self._has_executors else None
        if known is None or known <= self._tried:
            return
        self._log.info("new executors joined; checking them: %s", ", ".join(sorted(known - self._tried)))
        self._check()
        self._tried = known

    def naming(self) -> AbstractContextManager[None]:
        """In a job of a batch: name the hosts whose Python could not run its tasks; see `naming_executors`."""
        return naming_executors(self._spark, self._check) if has_other_python(self._spark) else nullcontext()

    def _check(self) -> None:
        with self._facts.described(f"{self._transactional_id}: check executors"):
            verdict = try_executors(self._spark, self._listener, tasks=self._facts.tasks_at_once())
        for warning in verdict.warnings.values():
            self._log.warning("executors: %s", warning)
        if verdict.faults:
            raise _refusal(self._spark, ", ".join(verdict.faults), "; ".join(verdict.faults.values()))
