"""Pictures of one sink, as status would have found them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jdbc_state.sessions import DriverSession, Liveness
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import KafkaView
from spark_2pc_sink.recovery.report import Action, ActionKind, RecoveryReport
from spark_2pc_sink.runbook.picture import Picture, Readers
from spark_2pc_sink.transactions import HangingTransaction
from tests.unit.recovery.test_report import ROW as DECIDED_ROW

ROW = replace(DECIDED_ROW, status="done", settled="5:2", digest="", age_s=400.0, decided_age_s=400.0)
ALIVE = Liveness(
    alive=True, detail="session 4711 on app1", session=DriverSession(4711, "app", hidden=False, address="10.0.0.1")
)
DEAD = Liveness(alive=False, detail="no session of it")
UNSEEN = Liveness(alive=None, detail="sessions do not tell")
HANGING = HangingTransaction(
    topic="orders",
    partition=0,
    producer_id=9,
    producer_epoch=0,
    coordinator_epoch=1,
    start_offset=14,
    last_timestamp_ms=0,
    duration_ms=3_600_000,
    reason="no coordinator knows producer id 9",
)
BLOCKED = Readers(owners=("billing",))


def report(**fields: Any) -> RecoveryReport:
    """A report of status about a sink that is well."""
    usual: dict[str, Any] = {
        "transactional_id": "orders",
        "settled": True,
        "dry_run": True,
        "before": ROW,
        "row": ROW,
        "kafka": KafkaView(TransactionState.COMPLETE_COMMIT, ProducerIdAndEpoch(5, 2), 2, "cluster"),
        "driver": DEAD,
        "reason": "the last decision is settled",
    }
    return RecoveryReport(**{**usual, **fields})


def picture(told: HaltCause | None = None, readers: Readers | None = None, **fields: Any) -> Picture:
    """A picture with such a report."""
    return Picture(transactional_id="orders", report=report(**fields), told=told, readers=readers or Readers())


def in_doubt(*planned: ActionKind, status: str = "decided", **fields: Any) -> Picture:
    """A picture of a sink for which a recovery would do something."""
    row = replace(ROW, status=status)
    actions = tuple(Action(kind, f"would {kind}") for kind in planned or ("commit",))
    return picture(**{"settled": False, "before": row, "row": row, "actions": actions, **fields})


def owed(**fields: Any) -> Picture:
    """A picture of a sink whose batch Kafka has aborted, with nothing left to do but to send it again."""
    row = replace(ROW, status="owed")
    return picture(**{"settled": False, "before": row, "row": row, **fields})


def halted(cause: HaltCause, **fields: Any) -> Picture:
    """A picture of a sink about which a recovery would halt."""
    return picture(**{"settled": False, "cause": cause, **fields})
