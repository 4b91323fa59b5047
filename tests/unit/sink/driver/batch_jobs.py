"""One batch driver over sides in this process: what tests of the driver share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from jdbc_state import StateRow
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from spark_2pc_sink.sink.driver.batch_values import BatchRules, RunOfQuery, Sides
from tests.unit.fakes.batch_work import FakeWork
from tests.unit.fakes.clock import FakeClock
from tests.unit.fakes.fake_kafka import PARTITION, FakeKafka
from tests.unit.fakes.memory_store import MemoryStateStore

ID = "orders"


class Job:
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
        recovery = Recovery(
            RecoveryOptions.parse(
                transactional_id=ID,
                kafka={"bootstrap.servers": "unused:9092"},
                database="postgresql://unused/none",
                settle_deadline_ms=5_000,
                adopt=adopt,
                accept_loss=accept_loss,
            ),
            kafka=self.kafka,
            store=self.store,
            clock=self.clock,
            topics=(PARTITION.topic,),
        )
        rules = {name: options.pop(name) for name in ("accept_replay", "on_decide") if name in options}
        self.driver = BatchDriver(
            Sides(recovery, self.kafka, self.store, self.clock),
            RunOfQuery(ID, "query", run_id, is_stopping=lambda: self.stopping, **options),
            BatchRules(attempts_max=3, decision_margin_ms=1_000, restore_deadline_ms=1_000, **rules),
            self,
        )

    figures: ClassVar[dict[str, float]] = {}

    def __call__(self, step: Step) -> None:
        self.steps.append(step)
        self.on_step(step)

    def work(self, **fields: Any) -> FakeWork:
        return FakeWork(self.kafka, **fields)

    def row(self) -> StateRow:
        row = self.store.read(ID)
        assert row is not None
        return row


def started() -> Job:
    job = Job()
    job.driver.recover()
    return job
