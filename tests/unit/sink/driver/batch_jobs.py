"""One batch driver over sides in this process: what tests of the driver share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jdbc_state import MemoryStateStore, StateRow
from spark_2pc_sink.ids import BatchRange, TopicPartition
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.sink.contract.batch_work import ProducedBatch, Replay, TransactionTicket
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.fake_kafka import FakeKafka

ID = "orders"
PARTITION = TopicPartition("orders", 0)


@dataclass
class FakeWork:
    """Three rows; can fail at will."""

    kafka: FakeKafka
    rows: int = 3
    records: int = 3
    copied: int = 3
    left_out: int = 0
    digest: str = "d" * 32
    fail: list[Exception] = field(default_factory=list)
    fail_copy: list[Exception] = field(default_factory=list)
    early: tuple[str, ...] = ()
    log: list[str] = field(default_factory=list)
    tickets: list[TransactionTicket] = field(default_factory=list)

    def partitions(self) -> list[TopicPartition]:
        return [PARTITION]

    def produce(self, ticket: TransactionTicket, begin: Callable[[], Any]) -> ProducedBatch:
        self.log.append("produce")
        for statement in self.early:
            begin().execute(statement)
        self.tickets.append(ticket)
        if self.records:
            self.kafka.produce(ticket.producer)
        if self.fail:
            raise self.fail.pop(0)
        digest = self.digest if self.records else ""
        return ProducedBatch(
            self.rows,
            self.records,
            digest,
            {PARTITION: (0, 2)},
            topic_ids=dict(self.kafka.topic_ids),
            record_bytes=100 * self.records,
            left_out=self.left_out,
        )

    def copy_into(self, connection: Any) -> int:
        self.log.append("copy")
        connection.execute("copy")
        if self.fail_copy:
            raise self.fail_copy.pop(0)
        return self.copied

    def reread(self, ticket: TransactionTicket) -> Replay:
        assert ticket.kafka_only
        self.log.append("reread")
        return Replay(self.records, self.digest if self.records else "")

    def discard(self) -> None:
        self.log.append("discard")


class Job:
    """One driver, and what it drives."""

    def __init__(
        self,
        *,
        sides: Job | None = None,
        run_id: str = "run",
        adopt: bool = False,
        accept_loss: str | None = None,
        **options: Any,
    ) -> None:
        self.kafka: FakeKafka = FakeKafka() if sides is None else sides.kafka
        self.store: MemoryStateStore = MemoryStateStore() if sides is None else sides.store
        self.clock = FakeClock()
        self.steps: list[Step] = []
        self.on_step: Callable[[Step], None] = lambda _: None
        self.stopping = False
        self.driver = BatchDriver(
            transactional_id=ID,
            recovery=Recovery(
                transactional_id=ID,
                kafka=self.kafka,
                store=self.store,
                clock=self.clock,
                settle_deadline_ms=5_000,
                adopt=adopt,
                accept_loss=None if accept_loss is None else BatchRange.parse(accept_loss),
                topics=(PARTITION.topic,),
            ),
            kafka=self.kafka,
            store=self.store,
            clock=self.clock,
            query_id="query",
            run_id=run_id,
            **{
                "attempts_max": 3,
                "decision_margin_ms": 1_000,
                "restore_deadline_ms": 1_000,
                "accept_replay": None,
                "stopping": lambda: self.stopping,
                "observer": self._observe,
                **options,
            },
        )

    def _observe(self, step: Step) -> None:
        self.steps.append(step)
        self.on_step(step)

    def work(self, **fields: Any) -> FakeWork:
        return FakeWork(self.kafka, **fields)

    def row(self) -> StateRow:
        row = self.store.read(ID)
        assert row is not None
        return row


def started() -> Job:
    """A driver that has recovered, on sides that nobody has used."""
    job = Job()
    job.driver.recover()
    return job
