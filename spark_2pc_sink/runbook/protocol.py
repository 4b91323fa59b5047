"""The log of a dialogue: observations, choices, actions and open points, in order and with the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from jdbc_state import Actor

#: ``saw`` a symptom; ``answered`` a question; ``did`` something to either side; ``verified`` both sides; ``left``
#: something to a person; ``failed`` with an error; ``ended``.
StepKind = Literal["saw", "answered", "did", "verified", "left", "failed", "ended"]


@dataclass(frozen=True)
class RunbookStep:
    at: datetime
    kind: StepKind
    text: str
    fields: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"at": self.at.isoformat(), "kind": self.kind, "text": self.text, **self.fields}

    def __str__(self) -> str:
        first, *more = self.text.splitlines() or [""]
        rest = "".join(f"\n{'':30}{line}" for line in more)
        return f"{self.at.isoformat(timespec='seconds').replace('+00:00', 'Z')} {self.kind:8} {first}{rest}"


@dataclass
class IncidentLog:
    """The steps of one dialogue; saved after each, so that the log is complete at any time."""

    who: Actor
    save: Callable[[IncidentLog], None] = lambda _: None
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    steps: list[RunbookStep] = field(default_factory=list)

    def note(self, kind: StepKind, text: str, **fields: Any) -> None:
        self.steps.append(RunbookStep(self.now(), kind, text, fields))
        self.save(self)

    def as_json(self) -> dict[str, Any]:
        """The log as JSON: who, where, and the list ``steps``, each with ``at``, ``kind`` and ``text``."""
        who = {"os_user": self.who.os_user, "host": self.who.host, "program": self.who.program}
        return {**who, "steps": [step.as_json() for step in self.steps]}

    def __str__(self) -> str:
        title = f"{self.who.program} runbook, by {self.who.os_user} on {self.who.host}"
        return "".join(f"{line}\n" for line in [title, *map(str, self.steps)])
