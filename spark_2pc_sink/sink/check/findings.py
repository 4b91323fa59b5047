"""Finding of a check: what was looked at, what it means for the job, and what to do; and the report of all of them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from spark_2pc_sink.plural import counted

#: ``ok``; ``warning``: the job runs, and something is weaker than it could be; ``problem``: the job would stop;
#: ``not_checked``: it could not be found out, and the remedy says how it can.
Level: TypeAlias = Literal["ok", "warning", "problem", "not_checked"]
_SHOWN: Final[dict[Level, str]] = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM", "not_checked": "not checked"}
_WIDTH: Final = 120


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        subject: what was looked at, such as "topic orders".
        level: what it means for the job.
        text: what was found.
        remedy: what to do; '' where nothing is to be done.
    """

    subject: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class CheckReport:
    """What a check has found. Programs read the fields; ``str()`` is for people.

    Attributes:
        transactional_id: of the sink.
        findings: in the order in which a job would meet them.
        guarantee: what is guaranteed with these settings, and what is not.
    """

    transactional_id: str
    findings: tuple[Finding, ...]
    guarantee: str

    @property
    def ready(self) -> bool:
        """True where no problem was found."""
        return not self.problems

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What a job would stop for."""
        return tuple(each for each in self.findings if each.level == "problem")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is weaker than it could be."""
        return tuple(each for each in self.findings if each.level == "warning")

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return {
            "transactional_id": self.transactional_id,
            "ready": self.ready,
            "findings": [asdict(each) for each in self.findings],
            "guarantee": self.guarantee,
        }

    def __str__(self) -> str:
        counts = [counted(len(found), word) for word, found in (("problem", self.problems), ("warning", self.warnings))]
        guarantee = textwrap.fill(self.guarantee, _WIDTH)
        return "\n".join([*_table(self.findings), "", guarantee, "", f"{self.transactional_id}: {', '.join(counts)}"])


def _table(findings: Sequence[Finding]) -> list[str]:
    subject = max((len(each.subject) for each in findings), default=0)
    level = max(map(len, _SHOWN.values()))
    indent = " " * (level + subject + 4)
    lines = []
    for each in findings:
        head = f"{_SHOWN[each.level]:<{level}}  {each.subject:<{subject}}  "
        lines += textwrap.wrap(each.text, _WIDTH, initial_indent=head, subsequent_indent=indent)
        # Lines of a remedy may be commands, which are pasted whole.
        lines += [f"{indent}> {line}" for line in each.remedy.splitlines()]
    return lines
