"""The questions of the runbook: each is repeated a few times at most, and its answer is logged in the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from spark_2pc_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_2pc_sink.runbook.choice import Choice
    from spark_2pc_sink.runbook.protocol import Protocol as WrittenProtocol

#: How often one question is asked before giving up.
ANSWERS_MAX: Final = 5
STOP: Final = "stop"
YES: Final = "yes"
TAKE_OVER: Final = "take over"


class NoAnswerError(Exception):
    """The answers have ended, or the person has interrupted a question, or no answer could be read."""


class Asker(Protocol):
    """The person, or a script in its place."""

    def say(self, text: str) -> None:
        """Show a text."""

    def ask(self, question: str) -> str:
        """Ask, and wait for the answer.

        Raises:
            NoAnswerError: there is no answer.
        """


class Questions:
    """All questions to a person.

    Args:
        asker: the person.
        protocol: logs each answer.
    """

    def __init__(self, asker: Asker, protocol: WrittenProtocol) -> None:
        self.say: Callable[[str], None] = asker.say
        self._asker = asker
        self._protocol = protocol

    def choose(self, offered: Sequence[Choice]) -> Choice | None:
        """Ask for one of the choices; None to stop.

        Raises:
            NoAnswerError: there is no answer.
        """
        by_name = {choice.name: choice for choice in offered}
        for _ in range(ANSWERS_MAX):
            answer = self._ask(f"Which one? [{'/'.join([*by_name, STOP])}]", "choice")
            if answer == STOP or answer in by_name:
                return by_name.get(answer)
            self.say(f"{answer!r} is none of them")
        raise NoAnswerError

    def name_inputs(self, choice: Choice) -> dict[str, object]:
        """Ask for a value that a choice needs.

        Raises:
            NoAnswerError: there is no answer.
        """
        return {each.option: self._parsed(each.question, each.option, each.parse) for each in choice.inputs}

    def reason(self, choice: Choice) -> str:
        """Ask why a difference between both sides is accepted.

        Raises:
            NoAnswerError: there is no answer.
        """
        self.say(f"This accepts a difference: {choice.accepts}")
        for _ in range(ANSWERS_MAX):
            answer = self._ask("Why? A sentence, for the history", "reason")
            if answer:
                return answer
        raise NoAnswerError

    def confirm(self, choice: Choice) -> bool:
        """Ask whether to carry out a choice.

        Raises:
            NoAnswerError: there is no answer.
        """
        self.say("\n".join([f"{choice.name}:", *(f"      {line}" for line in choice.effects)]))
        return self._ask(f"Do it? [{YES}/no]", "confirmation") == YES

    def take_over(self) -> bool:
        """Ask whether to stop a driver that is alive, or may be.

        Raises:
            NoAnswerError: there is no answer.
        """
        return self._ask(f"Its driver lives, or may. Stop it? [{TAKE_OVER}/no]", "take_over") == TAKE_OVER

    def _parsed(self, question: str, name: str, parse: Callable[[str], object]) -> object:
        for _ in range(ANSWERS_MAX):
            try:
                return parse(self._ask(question, name))
            except ConfigurationError as error:
                self.say(str(error))
        raise NoAnswerError

    def _ask(self, question: str, name: str) -> str:
        answer = self._asker.ask(question).strip()
        self._protocol.note("answered", f"{question} {answer}", question=name, answer=answer)
        return answer
