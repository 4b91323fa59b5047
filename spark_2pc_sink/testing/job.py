"""A user's job under test: run to its end or killed at a step of the recipe, its topic and database, what they contain.

Both sides of a sink are compared by `spark_2pc_sink.verify`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_2pc_sink.testing.processes import DeadlineError, JobError, wait_for_group
from spark_2pc_sink.testing.spark import spark_environment
from spark_2pc_sink.testing.topics import TopicRecord, read_topic

if TYPE_CHECKING:
    from spark_2pc_sink.recipe.steps import Step
    from spark_2pc_sink.testing.kafka_broker import ReferenceCoordinator
    from spark_2pc_sink.testing.postgres import PostgresServer
    from spark_2pc_sink.verification.report import VerifyReport

T = TypeVar("T", bound=Hashable)

#: How many elements of each kind a difference prints.
SHOWN_MAX = 10


@dataclass(frozen=True)
class MultisetDifference:
    """How a multiset differs from the expected one.

    Args:
        expected: number of elements expected.
        actual: number of elements found.
        missing: expected and not found, with counts.
        duplicated: found more often than expected, with the surplus counts.
        foreign: found and never expected, with counts.
    """

    expected: int
    actual: int
    missing: Counter[Hashable]
    duplicated: Counter[Hashable]
    foreign: Counter[Hashable]

    def __bool__(self) -> bool:
        return bool(self.missing or self.duplicated or self.foreign)

    def __str__(self) -> str:
        lines = [f"{self.actual} found, {self.expected} expected"]
        for name, elements in (("missing", self.missing), ("twice", self.duplicated), ("foreign", self.foreign)):
            if elements:
                lines.append(f"{name}: {elements.total()} of {len(elements)} different")
                lines += [f"  {count} x {element!r}" for element, count in elements.most_common(SHOWN_MAX)]
                lines += ["  …"] * (len(elements) > SHOWN_MAX)
        return "\n".join(lines)


def multiset_difference(actual: Iterable[T], expected: Iterable[T]) -> MultisetDifference:
    """Return how ``actual`` differs from ``expected``; false when they are equal, regardless of order."""
    found, wanted = Counter[Hashable](actual), Counter[Hashable](expected)
    surplus = found - wanted
    return MultisetDifference(
        expected=wanted.total(),
        actual=found.total(),
        missing=wanted - found,
        duplicated=Counter({element: count for element, count in surplus.items() if element in wanted}),
        foreign=Counter({element: count for element, count in surplus.items() if element not in wanted}),
    )


def assert_same_multiset(actual: Iterable[T], expected: Iterable[T], *, what: str) -> None:
    """Check that both have the same elements, equally often.

    Args:
        actual: elements found.
        expected: elements expected.
        what: names the comparison in the error, such as "records in topic orders".

    Raises:
        AssertionError: they differ; the text lists missing, duplicate and foreign elements.
    """
    if difference := multiset_difference(actual, expected):
        raise AssertionError(f"{what}: {difference}")


def assert_same_on_both_sides(
    *, transactional_id: str, kafka: Mapping[str, str | int | Callable[[str], Any]], database: str, **options: Any
) -> VerifyReport:
    """Check that committed records match the table's content, and the sink's history.

    Args:
        transactional_id: the sink's id.
        kafka: Kafka client properties.
        database: SQLAlchemy URL.
        **options: more keywords of `spark_2pc_sink.verify`, such as ``table`` or ``since``.

    Returns:
        The report, for more assertions: number of records, and what was not checked.

    Raises:
        AssertionError: the sides differ, or too much could not be compared, or no such sink has run; the text is the
            report.
        ConfigurationError, DatabaseUnreachableError, KafkaError, KafkaTimeoutError: see `spark_2pc_sink.verify`.
    """
    # Local import: it loads SQLAlchemy, which the servers do not need.
    from spark_2pc_sink.verification.api import verify  # noqa: PLC0415

    report = verify(transactional_id=transactional_id, kafka=kafka, database=database, **options)
    if not (report.known and report.same):
        raise AssertionError(str(report))
    return report


#: A job with Spark takes some 10 s on an idle machine.
JOB_DEADLINE_S: Final = 180.0
#: Characters from the end of a job's output that an error shows.
_TAIL_CHARACTERS: Final = 4_000


def run_job(
    script: str | os.PathLike[str],
    *arguments: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    deadline_s: float = JOB_DEADLINE_S,
) -> str:
    """Run a job to its end, in the current directory and with this Python.

    Args:
        script: the file with the job's program.
        arguments: its command line.
        environment: additional variables for the process.
        deadline_s: maximum seconds; the job is then killed.

    Returns:
        Its output.

    Raises:
        JobError: it failed; the text contains the end of its output.
        DeadlineError: it did not finish in time.
    """
    status, output = _run(script, (script, *arguments), environment, deadline_s)
    if status:
        raise JobError(f"{script} ended with status {status}. Its output ends:\n{output[-_TAIL_CHARACTERS:]}")
    return output


class CrashAt:
    """Runs a job that is killed at a step; the fixture ``crash_at`` is an instance.

    Args:
        environment: additional variables for the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment: dict[str, str] = dict(environment or {})

    def __call__(
        self,
        step: Step | str,
        script: str | os.PathLike[str],
        *arguments: str | os.PathLike[str],
        times: int = 1,
        deadline_s: float = JOB_DEADLINE_S,
    ) -> None:
        """Run a job until its sink has completed ``step``, then end it with SIGKILL, including Spark's Java process.

        Args:
            step: step of the recipe, or its name: docs/how-it-works.md describes the steps.
            script: the file with the job's program.
            arguments: its command line.
            times: kill when the step is reached for this time: 2 for the second batch.
            deadline_s: maximum seconds.

        Raises:
            JobError: it ended by itself before reaching the step that many times.
            DeadlineError: it did not reach the step in time.
        """
        name = step if isinstance(step, str) else step.name
        killing = ("-m", "spark_2pc_sink.testing.killed_job", name, times)
        status, output = _run(script, (*killing, script, *arguments), self.environment, deadline_s)
        if status != -signal.SIGKILL:
            raise JobError(
                f"{script} ended with status {status} before its sink had reached {name} {times} times. Its "
                f"output ends:\n{output[-_TAIL_CHARACTERS:]}"
            )


def _run(
    script: str | os.PathLike[str],
    arguments: Iterable[object],
    environment: Mapping[str, str] | None,
    deadline_s: float,
) -> tuple[int, str]:
    # A file: Spark's Java process may hold a pipe open after the job has ended.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A separate process group, which is killed as a whole, as when a machine is lost.
            start_new_session=True,
        )
        status: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(deadline_s)
        finally:
            # Leftover processes; there are none if the job was killed with its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            # Spark's Java process holds files and ports until it has ended.
            wait_for_group(process.pid)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    if status is None:
        tail = printed[-_TAIL_CHARACTERS:]
        raise DeadlineError(f"{Path(script).name} did not end within {deadline_s} s. Its output ends:\n{tail}")
    return status, printed


class DualWriteStack:
    """A topic and a database that no other test uses; the fixture ``dual_write_stack`` is an instance.

    Args:
        kafka: the running server.
        postgres: the running server.
        directory: directory for Spark's files.

    Attributes:
        topic: its name; it has 4 partitions.
        transactional_id: id for the sink.
        database: SQLAlchemy URL of the database, which is empty.
        kafka: Kafka client properties.
        environment: variables for `DualWriteSink.from_env` in the job, and for Spark on this machine.
    """

    def __init__(self, kafka: ReferenceCoordinator, postgres: PostgresServer, directory: Path) -> None:
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.topic: str = name
        self.transactional_id: str = name
        self._postgres = postgres
        kafka.create_topic(self.topic, partitions=4)
        self.database: str = postgres.create_database(name)
        self.kafka: dict[str, str] = {"bootstrap.servers": kafka.bootstrap}
        self.environment: dict[str, str] = {
            "SPARK_2PC_TRANSACTIONAL_ID": self.transactional_id,
            "SPARK_2PC_TOPIC": self.topic,
            "SPARK_2PC_DATABASE": self.database,
            "SPARK_2PC_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
            **spark_environment(directory),
        }

    @property
    def options(self) -> dict[str, Any]:
        """Both sides as keywords of `DualWriteSink`, for a job in this process."""
        return {name: getattr(self, name) for name in ("transactional_id", "topic", "database", "kafka")}

    def execute(self, *statements: str) -> None:
        """Run SQL statements in the database, each in a separate transaction."""
        for statement in statements:
            self.rows(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query in the database."""
        return self._postgres.query(query, database=self.topic)

    def records(self) -> list[TopicRecord]:
        """The committed records in the topic."""
        return read_topic(self.kafka["bootstrap.servers"], self.topic)

    def run_job(
        self,
        script: str | os.PathLike[str],
        *arguments: str | os.PathLike[str],
        environment: Mapping[str, str] | None = None,
        deadline_s: float = JOB_DEADLINE_S,
    ) -> str:
        """`run_job` with the variables of this stack."""
        environment = {**self.environment, **(environment or {})}
        return run_job(script, *arguments, environment=environment, deadline_s=deadline_s)

    def crash_at(self) -> CrashAt:
        """A `CrashAt` with the variables of this stack."""
        return CrashAt(self.environment)

    def assert_same(self, **options: Any) -> VerifyReport:
        """See `assert_same_on_both_sides`: topic and table are the same, and complete by the sink's history."""
        return assert_same_on_both_sides(
            transactional_id=self.transactional_id, kafka=self.kafka, database=self.database, **options
        )

    def close(self) -> None:
        """Drop the database, including any open connections."""
        self._postgres.drop_database(self.topic)
