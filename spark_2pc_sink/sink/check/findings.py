"""Findings of a check: subject, consequence for the job and remedy; and the report of all findings."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from spark_2pc_sink.plural import counted

#: ``ok``; ``warning``: the job runs, but some property is weaker than possible; ``problem``: the job would stop;
#: ``not_checked``: could not be determined; the remedy says how to determine it.
Level: TypeAlias = Literal["ok", "warning", "problem", "not_checked"]
_SHOWN: Final[dict[Level, str]] = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM", "not_checked": "not checked"}
_WIDTH: Final = 120
#: Subject of what is found about executors.
EXECUTORS: Final = "executors"


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    #: Such as "topic orders".
    subject: str
    level: Level
    text: str
    #: What to do; '' if no action is needed.
    remedy: str = ""


@dataclass(frozen=True)
class CheckReport:
    """The findings of a check. Programs read the fields; ``str()`` is for display.

    Attributes:
        transactional_id: the sink's id.
        findings: in the order in which a job would encounter them.
        guarantee: what these settings guarantee, and what they do not.
    """

    transactional_id: str
    findings: tuple[Finding, ...]
    guarantee: str

    @property
    def ready(self) -> bool:
        """True if no problem was found."""
        return not self.problems

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Findings that would stop a job."""
        return tuple(each for each in self.findings if each.level == "problem")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Properties that are weaker than possible."""
        return tuple(each for each in self.findings if each.level == "warning")

    def as_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return {
            "transactional_id": self.transactional_id,
            "ready": self.ready,
            "findings": [asdict(each) for each in self.findings],
            "guarantee": self.guarantee,
        }

    def __str__(self) -> str:
        subject = max((len(each.subject) for each in self.findings), default=0)
        level = max(map(len, _SHOWN.values()))
        indent = " " * (level + subject + 4)
        lines = []
        for each in self.findings:
            head = f"{_SHOWN[each.level]:<{level}}  {each.subject:<{subject}}  "
            lines += textwrap.wrap(each.text, _WIDTH, initial_indent=head, subsequent_indent=indent)
            # Lines of a remedy may be commands, which are pasted as a whole.
            lines += [f"{indent}> {line}" for line in each.remedy.splitlines()]
        counts = f"{counted(len(self.problems), 'problem')}, {counted(len(self.warnings), 'warning')}"
        guarantee = textwrap.fill(self.guarantee, _WIDTH)
        return "\n".join([*lines, "", guarantee, "", f"{self.transactional_id}: {counts}"])
