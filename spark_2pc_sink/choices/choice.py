"""One choice of a person: what it changes on either side, and the command that makes the change."""

from __future__ import annotations

import shlex
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal

#: Text of a choice for a side that it leaves unchanged.
UNCHANGED: Final = "nothing changes"
#: Placeholders for what only the operator can name, by the option that takes it.
PLACEHOLDERS: Final = {"accept_loss": "FIRST..LAST", "batch": "N"}
#: As the value of an option: the batch of the state row.
BATCH: Final = object()
RECOVER: Final = "spark-2pc recover"
VERIFY: Final = "spark-2pc verify"
STATUS: Final = "spark-2pc status"

#: Options that the sink has too, for users who start the job instead of running the command.
_OF_A_START: Final = frozenset({"adopt", "accept_loss"})

#: What may be known about an incident, and decides which of its choices fit.
Fact = Literal[
    "called twice",
    "checkpoint older",
    "decided",
    "ended",
    "first batch",
    "lost batches",
    "readable",
    "row older",
    "service",
]


class OperatorDecision(Enum):
    """A person's decision on a batch that the database has and Kafka may lack."""

    ACCEPT_REPLAY = "send Spark's replay although it differs"
    DROP = "leave Kafka without it"


class Act(Enum):
    RECOVER = "the runbook calls recover"
    COMPARE = "the runbook calls verify"
    ABORT_HANGING = "the runbook aborts the transactions that hang"
    RECHECK = "the runbook waits a moment and checks again"
    BY_HAND = "you, outside this command"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known about one incident. It fills in the placeholders of the choices, and selects those that fit."""

    known: frozenset[Fact] = frozenset()
    #: Batch of the state row; None if there is none, or it is unknown.
    batch: int | None = None
    #: The batches that the database lacks, or that are passed over, as ``accept_loss`` names them.
    batches: str = PLACEHOLDERS["accept_loss"]
    #: What a recovery without a decision changes in Kafka and in the database.
    planned: tuple[str, str] = ("its transaction ends as the database has decided", "the state row says how it ended")
    safe: bool = True
    #: By the name of a choice, what else has to be said about it.
    more: Mapping[str, str] = field(default_factory=dict)
    places: str = ""
    owners: tuple[str, ...] = ()

    def filled(self, text: str) -> str:
        """The text with this incident's values in place of ``{batch}``, ``{kafka}`` and others."""
        kafka, database = self.planned
        batch, owners = "N" if self.batch is None else self.batch, ", ".join(self.owners)
        told = text.format(batch=batch, kafka=kafka, database=database, places=self.places, owners=owners)
        return told.removeprefix(f"{UNCHANGED}; ")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One possible action. Texts may have the placeholders of `Facts.filled`."""

    name: str
    title: str
    kafka: str = UNCHANGED
    database: str = UNCHANGED
    act: Act = Act.BY_HAND
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The options that a person has to enter, of `PLACEHOLDERS`, each with the question.
    inputs: Mapping[str, str] = field(default_factory=dict)
    #: The difference between both sides that remains; '' if none does. Needs a reason.
    accepts: str = ""
    automatic: bool = False
    #: The manual steps, in order, before a start with the keywords. ``{owner}`` makes one for each owner.
    steps: tuple[str, ...] = ()
    #: True if the keywords are for one start of the sink, because only the job can carry it out.
    on_sink: bool = False
    note: str = ""
    #: Offered only if this fact holds.
    needs: Fact | None = None
    unless: Fact | None = None

    def fits(self, facts: Facts) -> bool:
        return (self.needs is None or self.needs in facts.known) and self.unless not in facts.known

    def filled(self, facts: Facts) -> Choice:
        given = {name: facts.batch if value is BATCH else value for name, value in self.options.items()}
        steps = [
            step.replace("{owner}", shlex.quote(owner))
            for step in self.steps
            for owner in (facts.owners if "{owner}" in step else ("",))
        ]
        return replace(
            self,
            title=facts.filled(self.title),
            note=facts.more.get(self.name, ""),
            kafka=facts.filled(self.kafka),
            database=facts.filled(self.database),
            options={name: value for name, value in given.items() if value is not None},
            automatic=self.automatic and facts.safe,
            steps=tuple(steps),
        )

    @property
    def todo(self) -> tuple[str, ...]:
        """What a person does, step by step."""
        start = ("start the job once with the options below", "remove them for the start after that")
        return (*self.steps, *start) if self.on_sink else self.steps

    @property
    def effects(self) -> tuple[str, ...]:
        """The changes, one line for each side; a single line if it changes neither."""
        if self.kafka == self.database == UNCHANGED:
            return (f"{UNCHANGED} on either side",)
        return f"Kafka:    {self.kafka}", f"database: {self.database}"

    def keywords(self, named: Mapping[str, object]) -> dict[str, Any]:
        return {**self.options, **named}

    def command(self, sink: str, named: Mapping[str, object]) -> str:
        """The command line, or the keywords of the sink; '' if there is nothing to paste."""
        if self.on_sink:
            given = ", ".join(f"{name}={value!r}" for name, value in self.keywords(named).items())
            return f"DualWriteSink(…, {given})"
        program = {Act.RECOVER: RECOVER, Act.COMPARE: VERIFY}.get(self.act)
        return "" if program is None else " ".join([program, sink, *flags(self.keywords(named))])

    def line(self, facts: Facts, sink: str) -> str:
        """The choice as one line of an error or a report: a command with its effects as a comment, or a sentence."""
        known = {**PLACEHOLDERS, "accept_loss": facts.batches}
        named = {option: known[option] for option in self.inputs}
        command = self.command(sink, named)
        if self.act is Act.COMPARE:
            return remedy(command, f"changes nothing: {self.title}")
        if self.act is Act.RECOVER:
            told = f"{self.title}{self.note}; Kafka: {self.kafka}; database: {self.database}"
            given = self.keywords(named)
            if given.keys() <= _OF_A_START and given:
                told += f"; or {replace(self, on_sink=True).command(sink, named)}, for one start of the job"
            return remedy(command, told)
        if not command:
            return self.title
        return f"{self.title}: {'; '.join([*self.steps, f'start the job once with {command}'])}{self.note}"


def remedy(command: str, change: str) -> str:
    """A remedy with a command: a shell line, with its effect on each side as a comment."""
    return f"{command}  # {change}"


def state_command(step: Literal["make", "migrate"], names: Mapping[str, str]) -> str:
    """The remedy for missing or old state tables; see `jdbc_state.settings.in_python`."""
    tables = {name: names[name] for name in ("state_schema", "state_table", "history_table")}
    role = names["role"]
    if step == "make":
        command = " ".join(["spark-2pc state ddl", *flags({**tables, "role": role})])
        change = "prints the statements for a role that may create tables; they create the tables, and grant"
        return remedy(command, f"changes nothing: {change} {role} what a driver needs")
    url = f"postgresql://{urllib.parse.quote(role, safe='')}@{names['where']}"
    command = " ".join(["spark-2pc state migrate", *flags({"database": url, **tables})])
    return remedy(command, f"as {role}: adds missing tables and columns, and changes no row; safe while jobs run")


def flags(keywords: Mapping[str, Any]) -> list[str]:
    """Options as flags of a command, each quoted for a shell."""
    words = []
    for name, value in keywords.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, OperatorDecision):
            words.append("--drop" if value is OperatorDecision.DROP else "--accept-replay")
        else:
            words.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    return words


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One problem of a sink."""

    title: str
    meaning: str
    choices: tuple[Choice, ...] = ()
    advice: str = ""
    #: Names of the choices that end it in RUNBOOK.md, in order, each with an example of a reason.
    walk: tuple[tuple[str, str], ...] = ()
    #: Words of the error by which it is known; '' if it is none.
    says: str = ""
    #: Status cannot see it, as it concerns a batch that Spark has passed to the sink, or a lost claim.
    job_only: bool = False
    about_owed: bool = False
    #: The problem that status shows in its place, so that its runbook is called with ``--cause``.
    seen_as: Enum | None = None
    more: str = ""

    def choices_for(self, facts: Facts) -> tuple[Choice, ...]:
        return tuple(choice.filled(facts) for choice in self.choices if choice.fits(facts))
