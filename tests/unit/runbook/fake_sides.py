"""A person who answers from a list, and both sides that show what a list has: for tests of the conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spark_2pc_sink.choices import FORCE_TERMINATE
from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.recovery.report import Action, RecoveryReport
from spark_2pc_sink.runbook.conversation import NoAnswerError
from spark_2pc_sink.runbook.picture import Picture
from spark_2pc_sink.runbook.sides import BothSides, Compared
from tests.unit.runbook.pictures import report

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
