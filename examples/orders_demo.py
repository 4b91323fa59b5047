"""The orders job on the reference coordinator and PostgreSQL, killed in the middle of batches: `make demo`.

    python examples/orders_demo.py [--kafka-kind reference|real] [--events 20000] [--keep DIR]

Starts both servers, writes order events, and starts orders_job.py, which is killed with SIGKILL inside a batch
twice, before and after the database commit. It is started again each time. The last time it runs to its end, and
compares both sides with the events: the exit code is 0 when nothing is missing and nothing is there twice. The servers
and all files are gone afterwards; --keep keeps the files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orders_compare import EXIT_DIFFERENT
from spark_2pc_sink import recover
from spark_2pc_sink.testing import CapabilityError, KafkaBroker, PostgresServer, ReferenceCoordinator, wait_until
from spark_2pc_sink.testing.kafka_broker import LocalBroker
from spark_2pc_sink.testing.spark import quick_java_options, spark_environment

EXAMPLES = Path(__file__).resolve().parent
#: Which Kafka the job runs on.
KAFKA_KINDS: dict[str, Callable[[], LocalBroker]] = {"reference": ReferenceCoordinator, "real": KafkaBroker}
FILES = 16
FILES_PER_BATCH = 4
#: The job is killed in the second batch that reaches the place.
KILLED_BATCH = 2
#: A start takes some ten seconds; this allows for a busy machine.
JOB_DEADLINE_S = 600
GENERATOR_DEADLINE_S = 120
LEFTOVERS_DEADLINE_S = 20
LOG_TAIL_CHARACTERS = 3_000


#: The job is killed right after these steps of `spark_2pc_sink.recipe.steps`; and how things are then.
KILLS = {
    "PRODUCE": "before the database commit, when Kafka has all records of a batch, invisible yet",
    "DECIDE": "after the database commit, before Kafka's",
}


def main() -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(description="The orders job, killed in the middle of batches.")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new directory for events, checkpoint and log")
    parser.add_argument("--kafka-kind", choices=sorted(KAFKA_KINDS), default="reference", help="which Kafka to start")
    given = parser.parse_args()
    if given.keep is not None and given.keep.exists():
        parser.error(f"{given.keep} exists already, and its checkpoint belongs to servers that are gone")
    for number in (signal.SIGINT, signal.SIGTERM):
        # Everything that was started is stopped at exit.
        signal.signal(number, lambda caught, _: sys.exit(128 + caught))
    try:
        with directory_of(given.keep) as directory:
            return Demo(directory, events=given.events, kafka_kind=given.kafka_kind).run()
    except CapabilityError as error:
        sys.exit(f"{error}")


class Demo:
    """One run.

    Args:
        directory: for events, checkpoint and log.
        events: how many.
        kafka_kind: one of `KAFKA_KINDS`.
    """

    def __init__(self, directory: Path, *, events: int, kafka_kind: str) -> None:
        self._directory = directory
        self._log = directory / "job.log"
        self._events = events
        self._kafka_kind = kafka_kind
        self._begun = time.monotonic()

    def run(self) -> int:
        """Start the servers, start and kill the job, and let it end and compare; its exit code."""
        self._say(f"starting Kafka ({self._kafka_kind}) and PostgreSQL, and writing order events")
        generator = subprocess.Popen(self._generator(), stdout=subprocess.DEVNULL)
        with generator, KAFKA_KINDS[self._kafka_kind]() as kafka, PostgresServer() as postgres:
            kafka.create_topic("orders", partitions=4)
            sides = {"kafka": kafka.bootstrap, "database": postgres.create_database("shop")}
            self._say(f"Kafka serves on {kafka.bootstrap}, PostgreSQL on 127.0.0.1:{postgres.port}")
            if generator.wait(GENERATOR_DEADLINE_S):
                return generator.returncode
            self._say(f"{self._events:,} order events are in {FILES} files; {FILES_PER_BATCH} files make a batch")
            for number, (step, situation) in enumerate(KILLS.items(), start=1):
                self._say(f"start {number}, to be killed {situation}")
                self._run_killed(step, sides)
                self._say("killed")
                self._show_doubt(sides)
            self._say(f"start {len(KILLS) + 1}, to the end")
            status = self._run_job(sides=sides)
        self._say(f"killed {len(KILLS)} times; {self._verdict(status)}")
        return status

    def _generator(self) -> list[str]:
        out = f"--out={self._directory / 'events'}"
        return [sys.executable, str(EXAMPLES / "orders_events.py"), out, f"--events={self._events}", f"--files={FILES}"]

    def _run_killed(self, step: str, sides: dict[str, str]) -> None:
        killing = ("-m", "spark_2pc_sink.testing.killed_job", step, str(KILLED_BATCH))
        status = self._run_job(*killing, sides=sides)
        if status != -signal.SIGKILL:
            sys.exit(f"the job was to be killed after {step}; {self._verdict(status)}")

    def _run_job(self, *before: str, sides: dict[str, str]) -> int:
        """Run the job in a process of its own, and show what it prints; its exit status, negative for a signal."""
        command = [
            sys.executable,
            *before,
            str(EXAMPLES / "orders_job.py"),
            f"--events={self._directory / 'events'}",
            f"--checkpoint={self._directory / 'checkpoint'}",
            f"--max-files-per-trigger={FILES_PER_BATCH}",
            "--available-now",
            *(f"--{name}={value}" for name, value in sides.items()),
        ]
        with (
            self._log.open("a") as log,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(),
                start_new_session=True,  # by which its processes are known, those of Spark too
            ) as job,
            session_ended(job.pid),
        ):
            for line in job.stdout or ():
                print(f"          | {line}", end="", flush=True)
            return job.wait()

    def _environment(self) -> dict[str, str]:
        """The job's environment, in which everything that Spark writes goes into the demo's directory."""
        temporary = self._directory / "tmp"
        temporary.mkdir(exist_ok=True)
        java = f"{quick_java_options()} -XX:-UsePerfData -Djava.io.tmpdir={temporary}"
        return {
            **os.environ,
            **spark_environment(temporary),
            "TMPDIR": str(temporary),
            "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{java}' pyspark-shell",
            "PYTHONUNBUFFERED": "1",
        }

    def _show_doubt(self, sides: dict[str, str]) -> None:
        """Show both sides, and what a restart will do about them, as `spark-2pc status` does."""
        report = recover(
            transactional_id="orders",
            kafka={"bootstrap.servers": sides["kafka"]},
            database=sides["database"],
            dry_run=True,
        )
        row = report.row
        database = "no state row" if row is None else f"batch {row.batch_id} is {row.status}"
        for name, text in (
            ("PostgreSQL", database),
            ("Kafka", report.kafka),
            ("recovery", "; ".join(map(str, report.actions)) or "has nothing to settle"),
        ):
            print(f"          {name:10}  {text}", flush=True)

    def _verdict(self, status: int) -> str:
        """Explain an exit status of the job."""
        if status == 0:
            return "Kafka and PostgreSQL match the input exactly"
        if status == EXIT_DIFFERENT:
            return "KAFKA OR POSTGRESQL DIFFERS from the input"
        return f"the job ended with {status}:\n{self._log.read_text()[-LOG_TAIL_CHARACTERS:]}"

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:7.1f} s {text}", flush=True)


@contextlib.contextmanager
def session_ended(session: int) -> Iterator[None]:
    """End every process of a session on the way out, or when the deadline of a job has passed.

    Raises:
        SystemExit: it had passed.
    """
    late = threading.Event()

    def end_late() -> None:
        late.set()
        kill_session(session)

    watchdog = threading.Timer(JOB_DEADLINE_S, end_late)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        # Spark's Python workers end on their own, a moment after Spark.
        wait_until(
            lambda: not kill_session(session), deadline_s=LEFTOVERS_DEADLINE_S, what="the end of the job's processes"
        )
    if late.is_set():
        sys.exit(f"the job did not end within {JOB_DEADLINE_S} s")


def kill_session(session: int) -> list[int]:
    """Kill the processes of a session, and return them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # proc(5): the name in parentheses, state, parent, group, session. A zombie (Z) has ended already.
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                os.kill(int(entry.name), signal.SIGKILL)
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def directory_of(keep: Path | None) -> Iterator[Path]:
    """The directory to keep, or one that is removed at the end."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="spark-2pc-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


if __name__ == "__main__":
    sys.exit(main())
