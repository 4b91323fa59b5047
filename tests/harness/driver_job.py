"""A job under test: its input, its two sides, and the drivers that a test starts, kills and stops for it."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest

from spark_2pc_sink import RecoveryReport, recover
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.testing import DeadlineError, assert_same_multiset, read_topic, wait_until
from tests.conformance.raw_client import RawClient
from tests.harness.driver_config import KILL, STOP, DriverConfig, Fault, Row, batch_file, read_batch
from tests.harness.driver_process import DRIVER_DEADLINE_S, DriverProcess, Nursery, Outcome
from tests.harness.providers import Broker
from tests.harness.sql import run_sql

#: Three batches, the third of which is empty, and one after it.
SMALL_INPUT = (20, 20, 0, 20)
#: More than COPY keeps in buffers on both ends: half of the second batch is in the table's pages while the rest waits.
LARGE_INPUT = (10, 4_000, 10)
_PAYLOAD_CHARACTERS = 200
#: What nothing should ever wait for.
LONG_MS = 60_000
#: Short is only the time after which a claim that finds the row locked ends the older driver's session.
SINK_OPTIONS: dict[str, Any] = {
    "claim_lock_timeout_ms": 200,
    "claim_deadline_ms": LONG_MS,
    "lock_timeout_ms": LONG_MS,
    "connect_timeout_s": 5,
    "connect_deadline_ms": LONG_MS,
    "settle_deadline_ms": LONG_MS,
}
KAFKA_OPTIONS: dict[str, Any] = {
    "request.timeout.ms": 10_000,
    "delivery.timeout.ms": LONG_MS,
    "max.block.ms": LONG_MS,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
}


def make_rows(batch: int, count: int) -> list[Row]:
    """Rows of a batch: keys that no other batch has, payloads with text that is not ASCII."""
    return [
        (batch * 100_000 + number, f"b{batch} n{number} äö€ ".ljust(_PAYLOAD_CHARACTERS, "·"))
        for number in range(count)
    ]


def terminate(broker: Broker, transactional_id: str) -> None:
    """Do what an operator's force-terminate does, and any application with the same id: InitProducerId.

    It aborts an open transaction, and takes the id over. By a request: librdkafka takes half a second for it.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=LONG_MS, producer_id=-1, producer_epoch=-1
    )
    with RawClient(broker.bootstrap) as client:
        wait_until(
            lambda: client.call(request, 4).error_code == Code.NONE,
            deadline_s=DRIVER_DEADLINE_S,
            what=f"{transactional_id} to be taken over",
        )


@dataclass
class Job:
    """One sink, its checkpoint, and what both sides must hold in the end.

    Args:
        folder: for input, checkpoint, and the files of drivers.
        spark: they are real streaming queries; else the batch driver alone.
        follow: the input grows while drivers run, and they can be told to stop (`DriverConfig.orders`).
        left_out: batches that the job's function does not hand over to the sink.
    """

    broker: Broker
    database: str
    topic: str
    transactional_id: str
    folder: Path
    nursery: Nursery
    spark: bool = False
    query_id: str = "query-1"
    follow: bool = False
    left_out: tuple[int, ...] = ()
    table: str = "target"
    drivers: list[DriverProcess] = field(default_factory=list)
    batches: int = 0

    def create(self, sizes: Sequence[int] = SMALL_INPUT, *, primary_key: bool = True) -> Job:
        """Make the table, the folders and the input.

        Args:
            primary_key: of the table; without it, nothing but the product keeps rows from being there twice.
        """
        key = "PRIMARY KEY" if primary_key else "NOT NULL"
        self.sql(f"CREATE TABLE {self.table} (id bigint {key}, payload text NOT NULL)")
        (self.folder / "input").mkdir()
        if not self.spark:
            self.checkpoint.mkdir()
        for batch, size in enumerate(sizes):
            self.write_batch(batch, make_rows(batch, size))
        self.batches = len(sizes)
        return self

    @property
    def checkpoint(self) -> Path:
        """What the query keeps over restarts."""
        return self.folder / "checkpoint"

    def write_batch(self, batch: int, rows: Sequence[Row]) -> None:
        """Write the input file of a batch. Spark reads files in the order of their times."""
        path = batch_file(self.folder / "input", batch)
        # A driver may be waiting for the file: it has its name once it is complete.
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.write_text(
            "".join(json.dumps({"id": number, "payload": payload}) + "\n" for number, payload in rows)
        )
        os.utime(unfinished, (1_700_000_000 + batch, 1_700_000_000 + batch))
        unfinished.rename(path)

    def add_batch(self) -> None:
        self.write_batch(self.batches, make_rows(self.batches, 20))
        self.batches += 1

    # --- drivers -------------------------------------------------------------------------------------------------

    def sink(self, *, kafka: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "kafka": {"bootstrap.servers": self.broker.bootstrap, **KAFKA_OPTIONS, **(kafka or {})},
            "database": self.database,
            "topic": self.topic,
            "table": self.table,
            **({"key": "cast(id AS string)", "value": "payload"} if self.spark else {}),
            **SINK_OPTIONS,
            **options,
        }

    def start(
        self, *faults: Fault, query_id: str | None = None, folder: Path | None = None, **sink: Any
    ) -> DriverProcess:
        """Start a driver on what the checkpoint lacks. ``folder``: for its files; one is made by default."""
        if folder is None:
            folder = self.folder / f"driver-{len(self.drivers)}"
            folder.mkdir()
        config = DriverConfig(
            journal=str(folder / "journal"),
            input=str(self.folder / "input"),
            checkpoint=str(self.checkpoint),
            query_id=query_id or self.query_id,
            batches=self.batches,
            sink=self.sink(**sink),
            faults=faults,
            spark=self.spark,
            follow=self.follow,
            left_out=self.left_out,
            orders=str(folder / "orders") if self.follow else "",
        )
        driver = self.nursery.start(config, folder)
        self.drivers.append(driver)
        return driver

    def kill_at(self, place: str, *, batch: int, nth: int = 1, **sink: Any) -> DriverProcess:
        """Start a driver that is killed with SIGKILL at ``place``; returns when it is gone."""
        driver = self.start(Fault(at=place, batch=batch, do=KILL, nth=nth), **sink)
        driver.wait_for_fault()
        return driver

    def stop_at(self, place: str, *, batch: int, nth: int = 1, **sink: Any) -> DriverProcess:
        """Start a driver that stops at ``place``; returns when it stands still."""
        driver = self.start(Fault(at=place, batch=batch, do=STOP, nth=nth), **sink)
        driver.wait_for_fault()
        return driver

    def run(self, *, deadline_s: float | None = None, **sink: Any) -> DriverProcess:
        driver = self.start(**sink)
        self.finished(driver, deadline_s=deadline_s)
        return driver

    def fail(self, **sink: Any) -> Outcome:
        """Run a driver that must end with an error of the package."""
        driver = self.start(**sink)
        outcome = driver.outcome()
        assert outcome.event == "error", f"{outcome}\n{driver.log_tail()}"
        return outcome

    def finished(self, driver: DriverProcess, *, deadline_s: float | None = None) -> None:
        outcome = driver.outcome(deadline_s=deadline_s)
        assert outcome == Outcome("finished"), f"{outcome}\n{driver.log_tail()}"

    def ends_well(self, driver: DriverProcess | None = None, **sink: Any) -> DriverProcess:
        """This driver goes on, or a new one runs, to the end of the input, and both sides hold all of it."""
        if driver is None:
            driver = self.start(**sink)
        else:
            driver.go_on()
        self.finished(driver)
        self.check()
        return driver

    def refused(self, why: HaltCause | str, *texts: str, times: int = 1, **sink: Any) -> Outcome:
        """Run drivers that must end for this cause, or by this error, and say each of these texts; the last one's end.

        Args:
            times: how many, one after the other.
        """
        for outcome in (self.fail(**sink) for _ in range(times)):
            assert why in (outcome.cause, outcome.error), outcome
            for text in texts:
                assert text in outcome.text, outcome.text
        return outcome

    def superseded(self, driver: DriverProcess) -> None:
        """Continue a stopped driver, and wait until it gives up because another has taken over."""
        driver.go_on()
        outcome = driver.outcome()
        assert (outcome.event, outcome.error) == ("error", "SupersededError"), f"{outcome}\n{driver.log_tail()}"

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()

    # --- both sides ----------------------------------------------------------------------------------------------

    def check(self, expected: Mapping[int, Sequence[Row]] | None = None, *, table: Sequence[Row] | None = None) -> None:
        """Both sides hold the input, each row once, and no transaction is left open.

        Args:
            expected: other rows than the input's for some batches.
            table: other rows than those for the table.
        """
        rows = [row for batch in range(self.batches) for row in {**self.input(), **(expected or {})}[batch]]
        assert_same_multiset(self._committed(len(rows)), rows, what="committed records in the topic")
        stored = self.sql(f"SELECT id, payload FROM {self.table}")
        assert_same_multiset(stored, rows if table is None else table, what="rows in the table")
        # A broker that comes back coordinates, as it was before it went, until it has heard of its successor.
        wait_until(
            lambda: self.describe().state != "Ongoing", what="the transaction to be over, by what its coordinator says"
        )

    def _committed(self, count: int) -> list[Row]:
        """What a reader of committed records finds, once it is as much or the deadline has passed.

        EndTxn is answered before the markers are written, and a leader that has just become one shows at first what
        its high watermark was as a follower.
        """
        found: list[Row] = []

        def complete() -> bool:
            records = read_topic(self.broker.bootstrap, self.topic)
            found[:] = [(int((record.key or b"").decode()), (record.value or b"").decode()) for record in records]
            return len(found) >= count

        with suppress(DeadlineError):  # what is missing then is told by the comparison
            wait_until(complete, what=f"{count} committed records")
        return found

    def input(self) -> dict[int, list[Row]]:
        """The rows of each batch as they are in the input now."""
        return {batch: read_batch(self.folder / "input", batch) for batch in range(self.batches)}

    def rows(self, *, but: Container[int] = ()) -> list[Row]:
        return [row for batch, rows in self.input().items() if batch not in but for row in rows]

    @property
    def sides(self) -> dict[str, Any]:
        """What every command takes, in Python."""
        kafka = {"bootstrap.servers": self.broker.bootstrap}
        return {"transactional_id": self.transactional_id, "kafka": kafka, "database": self.database}

    def recover(self, **options: Any) -> RecoveryReport:
        """Settle the sink, without waiting for a driver that was killed."""
        return recover(**self.sides, take_over=True, **options)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return run_sql(self.database, statement, *values)

    def state(self, *columns: str) -> tuple[Any, ...]:
        selected = ", ".join(columns)
        found = self.sql(
            f"SELECT {selected} FROM kafka_transaction_state WHERE transactional_id = %s", self.transactional_id
        )
        (row,) = found
        return row

    @contextmanager
    def coordinator(self) -> Iterator[TransactionClient]:
        """A client of the sink's transactions that belongs to nobody: an operator, or another application."""
        options = KafkaOptions.parse({"bootstrap.servers": self.broker.bootstrap, **KAFKA_OPTIONS})
        with Cluster(options) as cluster:
            yield TransactionClient(cluster, self.transactional_id, options)

    def describe(self) -> TransactionDescription:
        with self.coordinator() as client:
            return client.describe()

    def wait_for_state(self, state: str) -> None:
        """Wait until the coordinator shows the sink's transactional id in this state, by itself."""
        wait_until(lambda: self.describe().state == state, what=f"state {state}", interval_s=0.2)

    @contextmanager
    def unchanged(self, columns: str = "*") -> Iterator[None]:
        """The block changes neither what the coordinator shows nor the state row, or these columns of it."""

        def sides() -> tuple[TransactionDescription, list[tuple[Any, ...]]]:
            return self.describe(), self.sql(f"SELECT {columns} FROM kafka_transaction_state")

        before = sides()
        yield
        assert sides() == before

    def terminate(self) -> None:
        """Take the id over, as `terminate` does."""
        terminate(self.broker, self.transactional_id)

    def on(self, broker: Broker, **changes: Any) -> Job:
        """The same job against another broker; its drivers are closed with this one's."""
        return replace(self, broker=broker, **changes)
