"""The choices of a person about a sink: one table for errors, commands, the runbook, the dashboard and pages.

``choice`` says what a choice is. ``symptoms`` and ``halts`` are the table. Everything that shows a remedy reads it from
here; only the facts of an incident (`Facts`) come from the code that has found it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from jdbc_state.errors import DualWriteError, with_remedies
from spark_2pc_sink.choices.choice import PLACEHOLDERS, UNCHANGED, Act, Choice, Entry, Facts, OperatorDecision, flags
from spark_2pc_sink.choices.halts import HALTS, HaltCause
from spark_2pc_sink.choices.symptoms import EFFECTS, PLACES, SYMPTOMS, Symptom

__all__ = [
    "EFFECTS",
    "NO_FACTS",
    "PLACEHOLDERS",
    "PLACES",
    "TABLE",
    "UNCHANGED",
    "Act",
    "Choice",
    "Entry",
    "Facts",
    "HaltCause",
    "HaltError",
    "InDoubtError",
    "OperatorDecision",
    "Problem",
    "Symptom",
    "problem_in",
    "remedies",
]

Problem: TypeAlias = HaltCause | Symptom
TABLE: Final[Mapping[Problem, Entry]] = dict[Problem, Entry]([*SYMPTOMS.items(), *HALTS.items()])
NO_FACTS: Final = Facts()


def remedies(problem: Problem, facts: Facts, sink: str) -> tuple[str, ...]:
    """What can be done, a line each, the safest first: sentences, and complete commands with their effects."""
    return tuple(choice.line(facts, sink) for choice in TABLE[problem].choices_for(facts))


def problem_in(text: str) -> Problem | None:
    """The problem named in a text, by its value or by the words of the error; None if there is none."""
    word = text.strip().lower()
    found = (
        problem for problem, entry in TABLE.items() if entry.says and (problem.value == word or entry.says in text)
    )
    return next(found, None)


@dataclass(eq=False, kw_only=True)
class HaltError(DualWriteError):
    """The two sides differ, and there is no safe automatic answer. Kafka was left unchanged.

    ``cause`` is for programs, ``reason`` and ``remedies`` are for people. ``facts`` fill in the remedies. ``report`` is
    the recovery report on the sink; None until its recovery has seen the halt.
    """

    transactional_id: str
    cause: HaltCause
    database_side: str
    kafka_side: str
    reason: str
    facts: Facts = field(default=NO_FACTS, repr=False)
    remedies: tuple[str, ...] = ()
    report: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.remedies:
            # Without connections; a recovery, which knows them, makes the commands complete.
            self.remedies = remedies(self.cause, self.facts, *flags({"transactional_id": self.transactional_id}))
        super().__post_init__()

    def __str__(self) -> str:
        found = f"  database: {self.database_side}\n  Kafka:    {self.kafka_side}"
        needs = f"transactional id {self.transactional_id!r} needs a decision: {self.reason}."
        return with_remedies(f"{needs}\n{found}", self.remedies)


@dataclass(eq=False, kw_only=True)
class InDoubtError(DualWriteError):
    """The database has decided, and Kafka did not commit within the deadline. A restart completes it."""

    transactional_id: str
    prepared: str
    detail: str
    remedies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.remedies:
            self.remedies = remedies(Symptom.IN_DOUBT, NO_FACTS, *flags({"transactional_id": self.transactional_id}))
        super().__post_init__()

    def __str__(self) -> str:
        decided = f"transaction {self.prepared} of {self.transactional_id!r} is decided in the database and not yet "
        return with_remedies(f"{decided}completed in Kafka: {self.detail}. Nothing is lost.", self.remedies)


# Spark shows an error with its module, where users search for it.
for _public in (HaltCause, HaltError, InDoubtError):
    _public.__module__ = "spark_2pc_sink.errors"
del _public
