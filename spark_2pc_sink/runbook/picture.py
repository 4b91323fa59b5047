"""The picture of one sink: observations from status, the job's error and the topics; it determines the problem.

Some problems occur only in a job, because they concern the batch that Spark has passed; the job's error names the
cause, and a person enters it. The state of both sides takes precedence over what a person enters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from jdbc_state import OWED
from spark_2pc_sink.choices import NO_FACTS, TABLE, Act, Choice, Facts, Problem, Symptom

if TYPE_CHECKING:
    from spark_2pc_sink.recovery.report import RecoveryReport
    from spark_2pc_sink.transactions import HangingTransaction

#: Replaces the transactional id if all sinks were requested and none could be read.
EVERY_SINK: Final = "every sink"


@dataclass(frozen=True)
class Readers:
    """What blocks read_committed consumers of a sink's topics: hanging transactions, and open ones of known owners."""

    hanging: tuple[HangingTransaction, ...] = ()
    owners: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The observed state of one sink."""

    transactional_id: str
    report: RecoveryReport | None = None
    kafka_problem: str = ""
    database_problem: str = ""
    unreadable: str = ""
    readers: Readers = Readers()
    told: Problem | None = None

    @property
    def facts(self) -> Facts:
        facts = NO_FACTS if self.report is None else self.report.incident
        return replace(
            facts,
            places=", ".join(f"{one.where} at offset {one.start_offset}" for one in self.readers.hanging),
            owners=self.readers.owners,
        )

    @property
    def problem(self) -> Problem:
        if self.database_problem:
            return Symptom.DATABASE_OUT_OF_REACH
        if self.kafka_problem:
            return Symptom.KAFKA_OUT_OF_REACH
        if self.unreadable:
            return Symptom.UNREADABLE
        shown = Symptom.NOT_KNOWN if self.report is None else self.report.problem
        if self.told is not None and self._is_told(shown, self.told):
            return self.told
        if shown is Symptom.NOTHING_WRONG and self.readers.hanging:
            return Symptom.HANGING_TRANSACTION
        return Symptom.READERS_BLOCKED if shown is Symptom.NOTHING_WRONG and self.readers.owners else shown

    def _is_told(self, shown: Problem, told: Problem) -> bool:
        """Whether both sides admit the problem that the job reports."""
        if TABLE[told].seen_as is not None:
            return shown is TABLE[told].seen_as
        report = self.report
        if report is None or report.cause is not None or report.actions or shown in _NOT_THE_JOBS:
            return False
        owed = report.row is not None and report.row.status == OWED
        return (owed or report.settled) and TABLE[told].job_only and owed == TABLE[told].about_owed

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The possible actions, the safest first; empty if there is no problem."""
        fitting = TABLE[self.problem].choices_for(self.facts)
        # If no sink could be read, another look would find sinks that this picture is not about.
        again = self.transactional_id != EVERY_SINK
        return tuple(choice for choice in fitting if again or choice.act is not Act.RECHECK)


_NOT_THE_JOBS: Final = (Symptom.ELSEWHERE, Symptom.NOT_KNOWN)
