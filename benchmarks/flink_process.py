"""A Java process with a cluster of Apache Flink, which runs the jobs of `FlinkJob.java` one after the other.

The process is given a job as a line of JSON, and answers with one. So its virtual machine stays warm between jobs, and
who measures can make topics and tables, and look at CPU time, while no job runs.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import sqlalchemy

from benchmarks.workbench import DRIVER_MEMORY, ROOT, Servers
from benchmarks.writers import JDBC_BATCH_ROWS, KAFKA_TUNED
from spark_2pc_sink.testing import CapabilityError
from spark_2pc_sink.testing.processes import find_java_home
from tests.harness.kafka_tools import find_jars

LIBS_VARIABLE: Final = "SPARK_2PC_FLINK"
#: Tasks at a time, as in a session of `local[2]`.
SLOTS: Final = 2
_LIBS_DEFAULT: Final = ".cache/flink-2.0.2/libs"
_SOURCE: Final = ROOT / "benchmarks" / "FlinkJob.java"
_MAIN: Final = "FlinkJob"
_COMPILE_DEADLINE_S: Final = 120.0
#: Of one job: many times what a job of a million rows takes.
_JOB_DEADLINE_S: Final = 900.0
_END_DEADLINE_S: Final = 60.0
_LOG_TAIL_CHARACTERS: Final = 3_000
#: Flink's own scripts open these to its serializers; times are UTC, as in Spark's session.
_JVM: Final = (
    f"-Xmx{DRIVER_MEMORY}",
    "-Duser.timezone=UTC",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time", "net", "nio")),
)


def find_flink() -> Path:
    """The folder of the jars of Flink and its connectors.

    Raises:
        SystemExit: they were not fetched.
    """
    try:
        return find_jars(LIBS_VARIABLE, _LIBS_DEFAULT, jar="flink-streaming-java-", target="flink")
    except CapabilityError as error:
        raise SystemExit(str(error)) from error


def flink_versions(libs: Path) -> dict[str, str]:
    """The versions of Flink and of both connectors, by the names of their jars."""
    names = ("flink-streaming-java", "flink-connector-kafka", "flink-connector-jdbc-core")
    return {name: jar.stem.removeprefix(f"{name}-") for name in names for jar in libs.glob(f"{name}-*.jar")}


def compile_jobs(libs: Path, folder: Path) -> None:
    """Compile the jobs.

    Args:
        libs: jars of Flink.
        folder: for the classes.

    Raises:
        SystemExit: there is no compiler, or it has said why it refuses.
    """
    compiler = find_java_home() / "bin" / "javac"
    if not compiler.exists():
        message = f"no {compiler}: Flink's jobs are compiled, which takes a JDK (Debian: openjdk-17-jdk-headless)"
        raise SystemExit(message)
    command = [str(compiler), "-cp", f"{libs}/*", "-d", str(folder), str(_SOURCE)]
    if subprocess.run(command, check=False, timeout=_COMPILE_DEADLINE_S).returncode != 0:
        message = f"{_SOURCE} does not compile with the jars in {libs}"
        raise SystemExit(message)


class FlinkProcess:
    """The process; use it as a context manager.

    Args:
        libs: jars of Flink.
        folder: has the classes of the jobs; the process writes its log there.
        servers: Kafka and PostgreSQL.
    """

    def __init__(self, libs: Path, folder: Path, servers: Servers) -> None:
        self._log = folder / "flink.log"
        command = [
            str(find_java_home() / "bin" / "java"),
            *_JVM,
            "-cp",
            f"{folder}:{libs}/*",
            _MAIN,
            json.dumps(_given(servers)),
        ]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
            )

    def __enter__(self) -> FlinkProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        try:
            # The end of its input is the end of its jobs.
            self._process.communicate(timeout=_END_DEADLINE_S)
        finally:
            self._process.kill()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def append(self, topic: str, table: str, *, rows: int, interval_ms: int) -> float:
        """Run a job that makes narrow rows and writes them.

        Args:
            topic: exists already.
            table: exists already.
            rows: how many; their ids begin with 0.
            interval_ms: of checkpoints.

        Returns:
            seconds from handing the job to the cluster until both sides have committed all rows.

        Raises:
            SystemExit: the job has failed.
        """
        job = {"topic": topic, "table": table, "rows": rows, "interval_ms": interval_ms, "parallelism": SLOTS}
        return self._ask(job)["seconds"]

    def follow(self, source: str, topic: str, table: str, *, interval_ms: int) -> None:
        """Begin a job that writes the rows that the probe of `latency` puts into a topic.

        Args:
            source: that topic, which has one partition.
            topic: exists already.
            table: exists already.
            interval_ms: of checkpoints.
        """
        self._ask({"source": source, "topic": topic, "table": table, "interval_ms": interval_ms, "parallelism": 1})

    def stop(self) -> None:
        """End that job."""
        self._ask({})

    def _ask(self, job: Mapping[str, Any]) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(_JOB_DEADLINE_S, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(f"{json.dumps(job)}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            message = f"Flink's process ended without an answer. Its log ends:\n{self.log_tail()}"
            raise SystemExit(message)
        answer: dict[str, float] = json.loads(line)
        return answer

    def log_tail(self) -> str:
        """The end of what the process has logged."""
        return self._log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]


def _given(servers: Servers) -> dict[str, Any]:
    """Servers and settings: Kafka's and JDBC's as the pair's."""
    url = sqlalchemy.make_url(servers.url)
    return {
        "bootstrap": servers.bootstrap,
        "jdbc_url": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?reWriteBatchedInserts=true",
        "user": str(url.username),
        "password": str(url.password),
        "kafka": {"compression.type": "zstd", "acks": "all", **KAFKA_TUNED},
        "slots": SLOTS,
        "jdbc_batch_rows": int(JDBC_BATCH_ROWS),
    }
