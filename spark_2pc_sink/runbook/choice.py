"""A choice: one thing that can be done about a symptom, with what it changes on either side."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import BatchRange
from spark_2pc_sink.options import OperatorDecision

#: Stands for a reason in a command that is shown before one was given.
REASON: Final = "TEXT"
#: What a choice says of a side that it leaves alone.
UNCHANGED: Final = "nothing changes"


class Act(Enum):
    """Who carries a choice out, and how."""

    RECOVER = "the runbook calls recover"
    COMPARE = "the runbook calls verify"
    ABORT_HANGING = "the runbook aborts the transactions that hang"
    LOOK_AGAIN = "the runbook waits a moment and looks again"
    BY_HAND = "you, outside of this command"


@dataclass(frozen=True)
class Input:
    """One thing that a person has to name.

    Attributes:
        option: of `recover` or of the sink, that it becomes.
        question: for it.
        placeholder: stands for the answer in a command that is shown before.
        parse: checks the answer, and makes of it what the option takes.

    Raises:
        ConfigurationError: by ``parse``, where the answer cannot be one.
    """

    option: str
    question: str
    placeholder: str
    parse: Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing that can be done.

    Attributes:
        name: the answer that chooses it.
        title: what it does; the first words of its explanation.
        kafka: what it changes in Kafka.
        database: what it changes in the database.
        act: who carries it out.
        options: keywords of `recover` for it.
        inputs: what a person has to name, each one more keyword.
        accepts: the difference between both sides that remains; '' where none does. Needs a reason.
        automatic: True where it is always safe: both sides are ended as the database has decided.
        steps: what a person does, in order, where it is done by hand.
        on_sink: True where the keywords are for one start of the sink, because only the job can carry it out.
    """

    name: str
    title: str
    kafka: str = UNCHANGED
    database: str = UNCHANGED
    act: Act = Act.BY_HAND
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    accepts: str = ""
    automatic: bool = False
    steps: tuple[str, ...] = ()
    on_sink: bool = False

    @property
    def effects(self) -> tuple[str, ...]:
        """What it changes, a line for each side; one line where it leaves both alone."""
        if self.kafka == self.database == UNCHANGED:
            return (f"{UNCHANGED} on either side",)
        return f"Kafka:    {self.kafka}", f"database: {self.database}"

    def keywords(self, named: Mapping[str, object]) -> dict[str, Any]:
        """All keywords, with what a person has named."""
        return {**self.options, **named}

    def command(self, recover_command: str, named: Mapping[str, object]) -> str:
        """The same on the command line, or the keywords of the sink; '' where there is nothing to paste.

        Args:
            recover_command: ``spark-2pc recover`` with the connections of the sink.
            named: what a person has named.
        """
        if self.on_sink:
            given = ", ".join(f"{name}={value!r}" for name, value in self.keywords(named).items())
            return f"DualWriteSink(…, {given})"
        if self.act is not Act.RECOVER:
            return ""
        return " ".join([recover_command, *_flags(self.keywords(named))])


def _flags(keywords: Mapping[str, Any]) -> list[str]:
    """Keywords of `recover` as the command line has them."""
    flags = []
    for name, value in keywords.items():
        if isinstance(value, OperatorDecision):
            flags.append("--drop" if value is OperatorDecision.DROP else "--accept-replay")
        elif value is True:
            flags.append(f"--{name.replace('_', '-')}")
        else:
            flags.append(f"--{name.replace('_', '-')} {shlex.quote(str(value))}")
    return flags


def a_range(text: str) -> str:
    """Batches by name, as ``accept_loss`` takes them.

    Raises:
        ConfigurationError: the text names no batches.
    """
    return str(BatchRange.parse(text))


def a_batch(text: str) -> int:
    """A batch id.

    Raises:
        ConfigurationError: the text is no number, or below 0.
    """
    if not text.isascii() or not text.isdigit():
        raise ConfigurationError(
            option="batch", value=text, rule="it is the id of a batch, 0 or more", remedy="type a number such as 41"
        )
    return int(text)
