"""A person who answers from a list, both sides that show what a list has, and pictures of one sink."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jdbc_state.sessions import Liveness
from spark_2pc_sink.choices.symptoms import FORCE_TERMINATE
from spark_2pc_sink.errors import DualWriteError, HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import KafkaView
from spark_2pc_sink.recovery.report import Action, ActionKind, RecoveryReport
from spark_2pc_sink.runbook.conversation import NoAnswerError
from spark_2pc_sink.runbook.sides import BothSides, Compared, Picture, Readers
from spark_2pc_sink.transactions import HangingTransaction
from tests.unit.recovery.test_report import LOOK, ROW as DECIDED_ROW, SESSION

COMMAND = "spark-2pc recover --transactional-id orders"
SINK = "--transactional-id orders"
SAME = Compared("same", "orders: the same: 9 records, 10 rows")


class Script:
    """A person who answers in order, and then no more."""

    def __init__(self, answers: Iterable[str]) -> None:
        self._answers = iter(answers)
        self.questions: list[str] = []
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def ask(self, question: str) -> str:
        self.questions.append(question)
        for answer in self._answers:
            return answer
        raise NoAnswerError


class FakeSides(BothSides):
    """Both sides, as a list of what one look after the other finds; the last one stays."""

    def __init__(self, *looks: Picture | tuple[Picture, ...]) -> None:
        self._looks = [look if isinstance(look, tuple) else (look,) for look in looks]
        self.calls: list[dict[str, Any]] = []
        self.raises: list[DualWriteError | None] = []
        self.planned: RecoveryReport = report(actions=(Action("commit", "would commit 5:1"),))
        self.compared = SAME
        self.comparisons: list[bool] = []
        self.aborted = 0

    def look(self, transactional_id: str | None) -> tuple[Picture, ...]:
        found = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        return tuple(one for one in found if transactional_id in (None, one.transactional_id))

    def recover(self, transactional_id: str, **keywords: Any) -> RecoveryReport:
        assert transactional_id in {"orders", "other"}
        if keywords.pop("dry_run", False):
            return self.planned
        self.calls.append(dict(keywords))
        error = self.raises.pop(0) if self.raises else None
        if error is not None:
            raise error
        return report(dry_run=False, actions=(Action("commit", "committed 5:1"),))

    def abort_hanging(self, picture: Picture) -> list[str]:
        self.aborted += 1
        return [f"aborted {one.where}" for one in picture.readers.hanging]

    def last_actions(self, transactional_id: str) -> list[str]:
        return [f"commit of {transactional_id} by me on here"]

    def compare(self, transactional_id: str, *, open_transaction: bool) -> Compared:
        assert transactional_id in {"orders", "other"}
        self.comparisons.append(open_transaction)
        return self.compared

    def sink_flags(self, transactional_id: str) -> str:
        return SINK.replace("orders", transactional_id)

    def with_cluster(self, step: str) -> str:
        return f"{step} --bootstrap-server h:1" if step.startswith(FORCE_TERMINATE) else step

    def wait(self, seconds: float) -> None:
        """It is over at once."""


ROW = replace(DECIDED_ROW, status="done", settled="5:2", digest="", age_s=400.0, decided_age_s=400.0)
ALIVE = Liveness(alive=True, detail="session 4711 on app1", session=SESSION)
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
    kafka = KafkaView(TransactionState.COMPLETE_COMMIT, ProducerIdAndEpoch(5, 2), 2, "cluster")
    return replace(LOOK, **{"before": ROW, "row": ROW, "kafka": kafka, "driver": DEAD, **fields})


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
