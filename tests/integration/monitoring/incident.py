"""An incident of four sinks on real servers, recorded as Prometheus would: the exporter scraped every 15 seconds.

    python -m tests.integration.monitoring.incident --write    # takes 20 minutes

writes ``tests/unit/monitoring/incident.json``, against which the alert rules are tested. Nothing in it is made up, and
no clock is moved: what an alert waits for has really lasted so long.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from jdbc_state import DONE, SqlStateStore
from spark_2pc_sink import recover
from spark_2pc_sink.testing import KafkaBroker, PostgresServer, wait_until
from spark_2pc_sink.testing.ports import free_port
from tests.harness import ROOT
from tests.harness.driver_config import KILL, Fault
from tests.harness.driver_job import SMALL_INPUT, Job, make_rows
from tests.harness.driver_process import Nursery

if TYPE_CHECKING:
    from tests.harness.providers import Broker, Database

RECORDED: Final = ROOT / "tests" / "unit" / "monitoring" / "incident.json"
INTERVAL_S: Final = 15
#: What a scrape may take (docker/prometheus/prometheus.yml).
SCRAPE_TIMEOUT_S: Final = 12
#: The sink that is well, until it is killed in doubt; that whose transaction stays open; that whose topic is made anew;
#: that whose row nobody understands.
ORDERS, PAYMENTS, CLICKS, LEDGER = "orders", "payments", "clicks", "ledger"
MINUTE_S: Final = 60


class Recorder:
    """Scrapes an address, and keeps what it finds by series; a context manager.

    Args:
        address: HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._begun_s = time.monotonic()
        self._scrapes: list[dict[str, float]] = []
        self._moments: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def note(self, moment: str) -> None:
        """Something has just happened: the next scrape is the first that can show it."""
        self._moments[moment] = len(self._scrapes)
        sys.stdout.write(f"{time.monotonic() - self._begun_s:6.0f} s: {moment}\n")
        sys.stdout.flush()

    def wait(self, minutes: float) -> None:
        """Let it last."""
        self._over.wait(minutes * MINUTE_S)

    def as_json(self) -> dict[str, Any]:
        """Interval, moments by the number of the first scrape after them, and values by series as promtool reads them.

        A series that a scrape does not have is stale, as Prometheus marks it.
        """
        names = sorted({name for scrape in self._scrapes for name in scrape})
        series = {name: " ".join(_shown(scrape.get(name)) for scrape in self._scrapes) for name in names}
        return {"interval_s": INTERVAL_S, "moments": self._moments, "series": series}

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._over.is_set():
            self._scrapes.append(self._scrape())
            due_s += INTERVAL_S
            self._over.wait(max(0.0, due_s - time.monotonic()))

    def _scrape(self) -> dict[str, float]:
        try:
            with urllib.request.urlopen(f"http://{self._address}/metrics", timeout=SCRAPE_TIMEOUT_S) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
        except OSError:
            return {"up": 0.0}
        samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
        found = {_series(sample.name, sample.labels): round(sample.value, 3) for sample in samples}
        return {"up": 1.0, **found}


def _shown(value: float | None) -> str:
    return "stale" if value is None else f"{value}".removesuffix(".0")


def _series(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name


class Incident:
    """The servers, the sinks on them, and what happens to them.

    Args:
        folder: of its own.
        stack: closes all.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        # Two-phase commit: no time-out ends what is prepared.
        self.broker: Broker = stack.enter_context(KafkaBroker(two_phase_commit=True))
        self.postgres: Database = stack.enter_context(PostgresServer())
        self._folder, self._stack = folder, stack
        self._nursery = stack.enter_context(Nursery(folder))
        self._database = self.postgres.create_database("watched")

    def job(self, name: str) -> Job:
        """A sink with a few batches."""
        folder = self._folder / name
        folder.mkdir()
        topic = self.broker.create_topic(name, partitions=3)
        job = Job(
            broker=self.broker,
            database=self._database,
            topic=topic,
            transactional_id=name,
            folder=folder,
            nursery=self._nursery,
            follow=True,
            table=name,
        )
        self._stack.callback(job.close)
        return job.create(SMALL_INPUT)

    def exporter(self) -> tuple[subprocess.Popen[bytes], str]:
        """The exporter as a process of its own, and where it listens."""
        address = f"127.0.0.1:{free_port()}"
        sides = ("--bootstrap-server", self.broker.bootstrap, "--database", self._database, "--listen", address)
        process = subprocess.Popen([sys.executable, "-m", "spark_2pc_sink.cli", "exporter", *sides], cwd=ROOT)
        self._stack.callback(process.kill)
        wait_until(lambda: _answers(address), deadline_s=MINUTE_S, what="the exporter to listen")
        return process, address

    def remake_topic(self, name: str) -> None:
        """Delete a topic, and make one of the same name."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.delete_topics([name])[name].result(MINUTE_S)

        def gone() -> bool:
            return name not in admin.list_topics(timeout=MINUTE_S).topics

        wait_until(gone, deadline_s=MINUTE_S, what=f"{name} to be gone")
        self.broker.create_topic(name, partitions=3)

    def recover(self, job: Job) -> None:
        """As an operator does."""
        kafka = {"bootstrap.servers": self.broker.bootstrap}
        recover(transactional_id=job.transactional_id, kafka=kafka, database=self._database)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=SCRAPE_TIMEOUT_S):
            return True
    except urllib.error.URLError:
        return False


def _well(incident: Incident) -> dict[str, Job]:
    """Four sinks whose drivers run, and are about to break at their next batch but one."""
    jobs = {name: incident.job(name) for name in (ORDERS, PAYMENTS, CLICKS, LEDGER)}
    doomed = len(SMALL_INPUT) + 1
    jobs[ORDERS].start(Fault(at="step:DECIDE", batch=doomed, do=KILL))
    jobs[PAYMENTS].start(Fault(at="step:PREPARE", batch=doomed, do=KILL))
    jobs[CLICKS].start(Fault(at="step:DECIDE", batch=doomed, do=KILL))
    jobs[LEDGER].start()
    for job in jobs.values():
        _wait_for_batch(job, len(SMALL_INPUT) - 1)
    return jobs


def _wait_for_batch(job: Job, batch: int) -> None:
    def there() -> bool:
        with closing(SqlStateStore(job.database)) as store:
            row = store.read(job.transactional_id)
        return row is not None and row.status == DONE and (row.batch_id or 0) >= batch

    wait_until(there, deadline_s=2 * MINUTE_S, what=f"batch {batch} of {job.transactional_id}")


def _break_all(recorder: Recorder, incident: Incident, jobs: dict[str, Job]) -> None:
    """Three drivers die, each in the middle of a batch; and of the fourth sink the row is spoiled."""
    for job in jobs.values():
        job.write_batch(len(SMALL_INPUT), make_rows(len(SMALL_INPUT), 30))
        _wait_for_batch(job, len(SMALL_INPUT))
    recorder.wait(1)
    for name in (ORDERS, PAYMENTS, CLICKS):
        jobs[name].write_batch(len(SMALL_INPUT) + 1, make_rows(len(SMALL_INPUT) + 1, 40))
        jobs[name].drivers[0].wait_for_fault()
    incident.remake_topic(CLICKS)
    jobs[LEDGER].sql(
        "UPDATE kafka_transaction_state SET prepared_transaction_state = 'spoiled' WHERE transactional_id = %s", LEDGER
    )
    recorder.note("drivers are killed")
    recorder.wait(7)


def _take_servers_away(recorder: Recorder, incident: Incident) -> None:
    """Each side for three minutes."""
    for side, server in (("Kafka", incident.broker), ("the database", incident.postgres)):
        server.kill()
        recorder.note(f"{side} is gone")
        recorder.wait(3)
        server.start()
        recorder.note(f"{side} is back")
        recorder.wait(1)


def _let_kafka_lose_a_batch(recorder: Recorder, incident: Incident, orders: Job) -> None:
    """Another client ends the transaction that is in doubt; later the job sends the batch again, and then restarts."""
    orders.terminate()
    incident.recover(orders)
    recorder.note("Kafka is owed a batch")
    recorder.wait(6)
    orders.start()
    _wait_for_batch(orders, len(SMALL_INPUT) + 1)
    recorder.note("the batch is sent again")
    recorder.wait(1)
    for _ in range(5):
        orders.drivers[-1].close()
        _claim_anew(orders)
    recorder.note("the job starts again and again")
    recorder.wait(2)


def _claim_anew(job: Job) -> None:
    before = job.state("generation")
    job.start()
    wait_until(lambda: job.state("generation") > before, deadline_s=2 * MINUTE_S, what="another claim")


def record() -> dict[str, Any]:
    """Make the incident, and record it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-2pc-incident-")))
        incident = Incident(folder, stack)
        jobs = _well(incident)
        exporter, address = incident.exporter()
        with Recorder(address) as recorder:
            recorder.note("all is well")
            recorder.wait(1)
            _break_all(recorder, incident, jobs)
            _take_servers_away(recorder, incident)
            _let_kafka_lose_a_batch(recorder, incident, jobs[ORDERS])
            exporter.kill()
            recorder.note("the exporter is gone")
            recorder.wait(3)
        return recorder.as_json()


def main() -> None:
    """Record it, and print it or write it."""
    parser = argparse.ArgumentParser(description="Record the incident against which the alert rules are tested.")
    parser.add_argument("--write", action="store_true", help=f"into {RECORDED.relative_to(ROOT)}")
    write = parser.parse_args().write
    text = json.dumps(record(), indent=1) + "\n"
    if write:
        RECORDED.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
