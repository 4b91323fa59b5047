"""Both sides for one test of a job: a fresh topic and database, and the job's options as variables."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.testing.compare import assert_same_on_both_sides
from spark_2pc_sink.testing.job import JOB_DEADLINE_S, CrashAt, run_job
from spark_2pc_sink.testing.spark import spark_environment
from spark_2pc_sink.testing.topics import TopicRecord, read_topic

if TYPE_CHECKING:
    from spark_2pc_sink.testing.local_broker import ReferenceCoordinator
    from spark_2pc_sink.testing.postgres import PostgresServer
    from spark_2pc_sink.verification.report import VerifyReport

_PARTITIONS: Final = 4


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
        self._name = name
        self._postgres = postgres
        kafka.create_topic(self.topic, partitions=_PARTITIONS)
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
        return self._postgres.query(query, database=self._name)

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
        return run_job(
            script, *arguments, environment={**self.environment, **(environment or {})}, deadline_s=deadline_s
        )

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
        self._postgres.drop_database(self._name)
