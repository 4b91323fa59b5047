"""A choice: one possible action for a symptom, with the changes it makes on either side."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import BatchRange
from spark_2pc_sink.options import OperatorDecision

#: Placeholder for the reason in a command that is shown before a reason was given.
REASON: Final = "TEXT"
#: Text of a choice for a side that it leaves unchanged.
UNCHANGED: Final = "nothing changes"


class Act(Enum):
    """How a choice is carried out."""

    RECOVER = "the runbook calls recover"
    COMPARE = "the runbook calls verify"
    ABORT_HANGING = "the runbook aborts the transactions that hang"
    LOOK_AGAIN = "the runbook waits a moment and looks again"
    BY_HAND = "you, outside of this command"


@dataclass(frozen=True)
class Input:
    """One value that a person has to enter.

    Attributes:
        option: the option of `recover` or of the sink that receives it.
        question: prompt for it.
        placeholder: used in place of the answer in a command that is shown earlier.
        parse: checks the answer and converts it to the option's type.

    Raises:
        ConfigurationError: raised by ``parse`` if the answer is not valid.
    """

    option: str
    question: str
    placeholder: str
    parse: Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One possible action.

    Attributes:
        name: the answer that selects it.
        title: what it does; the first words of its explanation.
        kafka: changes in Kafka.
        database: changes in the database.
        act: how it is carried out.
        options: keywords of `recover` for it.
        inputs: values that a person has to enter, one more keyword each.
        accepts: the difference between both sides that remains; '' if none does. Needs a reason.
        automatic: True if it is always safe: both sides end as the database has decided.
        steps: the manual steps, in order.
        on_sink: True if the keywords are for one start of the sink, because only the job can carry it out.
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
        """The changes, one line for each side; a single line if it changes neither."""
        if self.kafka == self.database == UNCHANGED:
            return (f"{UNCHANGED} on either side",)
        return f"Kafka:    {self.kafka}", f"database: {self.database}"

    def keywords(self, named: Mapping[str, object]) -> dict[str, Any]:
        """All keywords, including the values that a person has entered."""
        return {**self.options, **named}

    def command(self, recover_command: str, named: Mapping[str, object]) -> str:
        """The command line, or the keywords of the sink; '' if there is nothing to paste.

        Args:
            recover_command: ``spark-2pc recover`` with the connections of the sink.
            named: values that a person has entered.
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
        ConfigurationError: the text is not a number, or is below 0.
    """
    if not text.isascii() or not text.isdigit():
        raise ConfigurationError(
            option="batch", value=text, rule="it is the id of a batch, 0 or more", remedy="type a number such as 41"
        )
    return int(text)
