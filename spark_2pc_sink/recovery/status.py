"""Status report: the state of both sides for many sinks, the parts that could not be read, and a one-line summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from spark_2pc_sink.plural import counted
from spark_2pc_sink.recovery.report import duration

if TYPE_CHECKING:
    from spark_2pc_sink.recovery.report import Condition, RecoveryReport

#: Order of a summary: fine sinks are first, as most are.
_SUMMED_UP: Final[tuple[Condition, ...]] = ("fine", "at_work", "in_doubt", "owed", "unclear", "not_known", "elsewhere")
#: Conditions that need a person, which exit code 3 reports.
IN_DOUBT: Final[frozenset[Condition]] = frozenset({"in_doubt", "owed"})


@dataclass(frozen=True)
class UnreadableSink:
    transactional_id: str
    side: Literal["database", "kafka"]
    problem: str

    def as_json(self) -> dict[str, str]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """Result of `status`. Programs read the fields; `summary` is for people.

    Attributes:
        sinks: one report for each sink, by transactional id.
        unreadable: sinks with invalid data. If only Kafka's is invalid, they are also among ``sinks``, as the database
            shows them.
        kafka_problem: why Kafka could not be read; then the reports have only what the database knows. '' if it could.
        database_problem: why the database could not be read; then ``sinks`` are the transactions that Kafka shows. ''
            if it could.
        note: if there are no sinks, what was found instead. '' if there are some.
    """

    sinks: tuple[RecoveryReport, ...] = ()
    unreadable: tuple[UnreadableSink, ...] = ()
    kafka_problem: str = ""
    database_problem: str = ""
    note: str = ""

    @property
    def in_doubt(self) -> tuple[RecoveryReport, ...]:
        """The sinks that need a person: in doubt for a reason other than a batch in progress, or owed.

        Sinks of other clusters are not included.
        """
        return tuple(report for report in self.sinks if report.condition in IN_DOUBT)

    @property
    def complete(self) -> bool:
        """True if both sides were read, and all data was valid."""
        return not (self.unreadable or self.kafka_problem or self.database_problem)

    @property
    def summary(self) -> str:
        """One line: the number of sinks, by condition, and the age of the oldest."""
        ids = {sink.transactional_id for sink in self.sinks} | {row.transactional_id for row in self.unreadable}
        number = len(ids)
        parts = [text for condition in _SUMMED_UP if (text := self._counted(condition))]
        parts += [f"{len(self.unreadable)} unreadable"] if self.unreadable else []
        return f"{counted(number, 'sink')}{': ' if parts else ''}{', '.join(parts)}"

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON; see docs/reference/json.md. ``summary`` and ``note`` are texts for people."""
        return {
            "summary": self.summary,
            "sinks": [report.as_json() for report in self.sinks],
            "in_doubt": [report.transactional_id for report in self.in_doubt],
            "unreadable": [each.as_json() for each in self.unreadable],
            "kafka_problem": self.kafka_problem or None,
            "database_problem": self.database_problem or None,
            "note": self.note or None,
        }

    def _counted(self, condition: Condition) -> str:
        """The number in a condition; with the age if they need a person; '' for none."""
        those = [report for report in self.sinks if report.condition == condition]
        ages = [report.waits_s for report in those if report.waits_s is not None and condition in IN_DOUBT]
        oldest = f" (for {duration(max(ages))})" if ages else ""
        word = "healthy" if condition == "fine" else condition.replace("_", " ")
        return f"{len(those)} {word}{oldest}" if those else ""
