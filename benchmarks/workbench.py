"""What every benchmark with Spark needs: Apache Kafka, PostgreSQL, a session, and a way to look at CPU and memory.

Both servers are set up as for a job, not for tests: PostgreSQL waits for the disk at each COMMIT (fsync=on) and has
room for its log, Kafka's virtual machine optimises. Kafka itself never waits for the disk, which is its default.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import sqlalchemy

from benchmarks.processes import ProcessTree
from spark_2pc_sink.testing import KafkaBroker, PostgresServer
from spark_2pc_sink.testing.kafka_broker import create_topic
from spark_2pc_sink.testing.spark import start_spark
from spark_2pc_sink.testing.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
KAFKA_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
POSTGRES_SETTINGS = {
    "fsync": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
DATABASE = "bench"
DRIVER_MEMORY = "3g"
#: As docs/performance.md advises; nothing of the pair runs in Python.
SPARK_SETTINGS = {"spark.driver.memory": DRIVER_MEMORY, "spark.python.unix.domain.socket.enabled": "true"}
#: Of each executor of a cluster, which has one core.
EXECUTOR_MEMORY = "2g"


@dataclass(frozen=True)
class Servers:
    """Where the servers are, for this process and for those that it starts.

    Attributes:
        bootstrap: of Kafka.
        url: SQLAlchemy's, of a database of the benchmarks' own.
        kafka_pid: the broker's process.
        postgres_pid: the postmaster's process.
    """

    bootstrap: str
    url: str
    kafka_pid: int
    postgres_pid: int

    def json(self) -> dict[str, Any]:
        """As a plain mapping, for a process that is started."""
        return asdict(self)


class Workbench:
    """Servers, a Spark session, and names of topics and tables that nobody has used. Use it as a context manager.

    Args:
        cores: how many tasks Spark runs at a time.
        cluster: tasks run in a standalone cluster: so many workers of one core each, whose executors are processes.
        servers: those of the process that started this one; by default its own are started.
    """

    spark: SparkSession
    servers: Servers
    tree: ProcessTree
    engine: sqlalchemy.Engine
    directory: Path

    def __init__(self, *, cores: int = 2, cluster: bool = False, servers: Servers | None = None) -> None:
        self._cores = cores
        self._cluster = cluster
        self._given = servers
        self._stack = ExitStack()
        self._numbers = count(1)

    def __enter__(self) -> Workbench:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-2pc-bench-")))
            self.servers = self._given or start_servers(stack)
            self.tree = ProcessTree({self.servers.kafka_pid: "kafka", self.servers.postgres_pid: "postgresql"})
            self.engine = sqlalchemy.create_engine(self.servers.url, poolclass=sqlalchemy.NullPool)
            settings = SPARK_SETTINGS | (self._start_cluster(stack) if self._cluster else {})
            self.spark = start_spark(self.directory, cores=self._cores, python_path=ROOT, settings=settings)
            stack.callback(self.spark.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start_cluster(self, stack: ExitStack) -> dict[str, str]:
        """Start it; the settings of a session there. Executors import this checkout, as tasks of one process do."""
        folder = self.directory / "cluster"
        folder.mkdir()
        cluster = SparkCluster(folder, python_path=ROOT, workers=self._cores, memory=EXECUTOR_MEMORY)
        stack.enter_context(cluster)
        executor = {"spark.executor.cores": "1", "spark.executor.memory": EXECUTOR_MEMORY}
        return {"spark.master": cluster.master, **executor, "spark.cores.max": str(self._cores)}

    def new_name(self) -> str:
        """A name for a topic, a table and a transactional id; also new to processes that share the servers."""
        return f"bench_{os.getpid()}_{next(self._numbers)}"

    def new_topic(self, name: str, *, partitions: int) -> None:
        """Create a topic."""
        create_topic(self.servers.bootstrap, name, partitions=partitions)

    def execute(self, *statements: str) -> None:
        """Run statements one after the other, each in a transaction of its own."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def settle(self) -> None:
        """Let PostgreSQL write what earlier runs have left, so that the next one begins where they began."""
        self.execute("CHECKPOINT")


def start_servers(stack: ExitStack, settings: Mapping[str, str] | None = None) -> Servers:
    """Start Apache Kafka and PostgreSQL, which end with the stack.

    Args:
        stack: ends them.
        settings: of PostgreSQL, beyond those of every benchmark.
    """
    broker = stack.enter_context(KafkaBroker(jvm_options=KAFKA_JVM))
    postgres = stack.enter_context(PostgresServer(settings={**POSTGRES_SETTINGS, **(settings or {})}))
    return Servers(
        bootstrap=broker.bootstrap,
        url=postgres.create_database(DATABASE),
        kafka_pid=broker.pid,
        postgres_pid=postgres.pid,
    )
