"""The dialogue: look, name the symptom, show the choices, ask, act, check again, verify; and log every step.

Actions are only carried out if chosen and confirmed. With ``automatic``, no questions are asked: only choices that are
always safe are carried out, and the rest is left to a person. Taking over from a live driver needs its own consent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from textwrap import indent
from typing import Any, Final, Literal, Protocol

from jdbc_state import Actor
from spark_2pc_sink.choices import PLACEHOLDERS, PLACES, TABLE, Act, Choice, HaltCause, HaltError, Problem, Symptom
from spark_2pc_sink.errors import ConfigurationError, DualWriteError, TakeOverRefusedError
from spark_2pc_sink.ids import BatchRange
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.plural import counted
from spark_2pc_sink.runbook.sides import BothSides, Picture
from spark_2pc_sink.verification.report import Verdict

#: How often one question is asked before giving up.
ANSWERS_MAX: Final = 5
STOP: Final = "stop"
YES: Final = "yes"
TAKE_OVER: Final = "take over"
#: Placeholder for the reason in a command that is shown before a reason was given.
REASON: Final = "TEXT"
#: Limit of looks at one sink; after that the dialogue must be restarted.
ROUNDS_MAX: Final = 20
#: How long a running batch may take to end before it is looked at again.
RECHECK_S: Final = 5.0

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
        text = self.text.rstrip().replace("\n", f"\n{'':30}")
        return f"{self.at.isoformat(timespec='seconds').replace('+00:00', 'Z')} {self.kind:8} {text}"


@dataclass
class IncidentLog:
    """What was seen, chosen, done and left open in one dialogue; saved after each step, so that it is complete."""

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


class NoAnswerError(Exception):
    """The answers have ended, or the person has interrupted a question, or no answer could be read."""


class Asker(Protocol):
    """The person, or a script in its place."""

    def say(self, text: str) -> None: ...
    def ask(self, question: str) -> str: ...


def parsed(option: str, text: str) -> object:
    """Check an answer, and convert it to the option's type."""
    if option == "accept_loss":
        return str(BatchRange.parse(text))
    if not text.isascii() or not text.isdigit():
        raise refused("batch", text, "must be the id of a batch, 0 or more", "type a number such as 41")
    return int(text)


class RunbookEnd(Enum):
    """Outcome of a dialogue; the worst of several sinks counts."""

    SETTLED = "nothing is in doubt"
    NOT_KNOWN = "the sink is unknown"
    LEFT = "a person must finish something"
    OUT_OF_REACH = "a side cannot be reached"


#: Symptoms that need no action; every other symptom leaves something to a person.
_ENDINGS: Final[dict[Problem, RunbookEnd]] = {
    Symptom.NOTHING_WRONG: RunbookEnd.SETTLED,
    Symptom.NOT_KNOWN: RunbookEnd.NOT_KNOWN,
    Symptom.ELSEWHERE: RunbookEnd.NOT_KNOWN,
    Symptom.KAFKA_OUT_OF_REACH: RunbookEnd.OUT_OF_REACH,
    Symptom.DATABASE_OUT_OF_REACH: RunbookEnd.OUT_OF_REACH,
}


class Conversation:
    """Walks a person through the problems of one sink after another."""

    def __init__(
        self, sides: BothSides, asker: Asker, log: IncidentLog, *, told: Problem | None = None, automatic: bool = False
    ) -> None:
        self._sides = sides
        self._asker = asker
        self._say = asker.say
        self._log = log
        self._told_at_first = self._told = told
        self._automatic = automatic
        self._acted = False
        self._accepted: list[str] = []

    def run(self, transactional_id: str | None) -> RunbookEnd:
        """Look at one sink, or at all, and handle each that has a problem."""
        pictures = self._sides.look(transactional_id)
        every = len(pictures)
        if transactional_id is None:
            pictures = tuple(picture for picture in pictures if needs_care(picture))
            self._say(f"{counted(every, 'sink')}, {len(pictures)} in need of attention")
        if not every:
            self._say(f"No sink has a state row here. Compare with the options of the job: {PLACES}")
        elif not pictures:
            self._say(
                "If a job has stopped with an error: spark-2pc runbook --transactional-id with the id in that error"
            )
        # A database other than that of the jobs has nothing in doubt either.
        well = RunbookEnd.SETTLED if every else RunbookEnd.NOT_KNOWN
        ending = max((self._one(picture) for picture in pictures), key=list(RunbookEnd).index, default=well)
        self._say(f"Result: {ending.value}")
        self._log.note("ended", ending.value)
        return ending

    def _one(self, picture: Picture) -> RunbookEnd:
        self._told, self._acted, self._accepted = self._told_at_first, False, []
        try:
            for _ in range(ROUNDS_MAX):
                picture = replace(picture, told=self._told)
                ending = self._round(picture)
                if ending is not None:
                    return ending
                (picture,) = self._sides.look(picture.transactional_id)
        except NoAnswerError:
            changed = "nothing was changed except as shown above" if self._acted else "nothing was changed"
            return self._left(f"Stopped at a question: {changed}", picture)
        except DualWriteError as error:
            self._log.note("failed", str(error), error=type(error).__name__)
            raise
        return self._left(f"Checked {ROUNDS_MAX} times; start again", picture)

    def _round(self, picture: Picture) -> RunbookEnd | None:
        """Show one look at the sink, and carry out the choice; None to check again."""
        self._show(picture)
        if picture.problem is Symptom.NOTHING_WRONG:
            return self._nothing_wrong(picture)
        if self._automatic and not needs_care(picture):
            return _ENDINGS.get(picture.problem, RunbookEnd.SETTLED)
        offered = picture.choices
        self._offer(offered, picture)
        choice = next((one for one in offered if one.automatic), None) if self._automatic else self._choose(offered)
        if choice is None:
            person = "A person must decide: call spark-2pc runbook without --yes"
            return self._left(person if self._automatic else "Nothing was chosen", picture)
        return self._carry_out(choice, picture)

    def _show(self, picture: Picture) -> None:
        symptom = picture.problem
        title = f"{picture.transactional_id}: {TABLE[symptom].title} ({symptom.value})"
        # Choices replace the remedies, which list all of them at once.
        report = None if picture.report is None else replace(picture.report, remedies=())
        problems = (picture.database_problem, picture.kafka_problem, picture.unreadable, picture.readers.problem)
        seen = "\n".join([*([] if report is None else [str(report)]), *(text for text in problems if text)])
        for text in ("", title, f"  {TABLE[symptom].meaning}", indent(seen, "  ")):
            self._say(text)
        self._log.note(
            "saw",
            f"{title}\n{seen}",
            transactional_id=picture.transactional_id,
            symptom=symptom.value,
            report=None if report is None else report.as_json(),
        )

    def _offer(self, offered: tuple[Choice, ...], picture: Picture) -> None:
        self._say("Choices, the safest first:")
        command = self._sides.sink_flags(picture.transactional_id)
        for choice in offered:
            named = {option: PLACEHOLDERS[option] for option in choice.inputs}
            named |= {"reason": REASON} if choice.accepts else {}
            pasted = choice.command(command, named)
            lines = [
                *choice.effects,
                f"done by:  {choice.act.value}",
                *([f"accepts:  {choice.accepts}"] if choice.accepts else []),
                *([f"command:  {pasted}"] if pasted else []),
            ]
            self._say(f"  {choice.name}: {choice.title}{choice.note}")
            self._say(indent("\n".join(lines), 6 * " "))
        self._say(f"  {STOP}: change nothing")

    def _choose(self, offered: Sequence[Choice]) -> Choice | None:
        by_name = {choice.name: choice for choice in offered}
        for _ in range(ANSWERS_MAX):
            answer = self._ask(f"Which one? [{'/'.join([*by_name, STOP])}]", "choice")
            if answer == STOP or answer in by_name:
                return by_name.get(answer)
            self._say(f"{answer!r} is not one of these")
        raise NoAnswerError

    def _reason(self, choice: Choice) -> str:
        self._say(f"This accepts a difference: {choice.accepts}")
        for _ in range(ANSWERS_MAX):
            answer = self._ask("Why? One sentence for the history", "reason")
            if answer:
                return answer
        raise NoAnswerError

    def _confirm(self, choice: Choice) -> bool:
        self._say("\n".join([f"{choice.name}:", *(f"      {line}" for line in choice.effects)]))
        return self._ask(f"Do it? [{YES}/no]", "confirmation") == YES

    def _value(self, option: str, question: str) -> object:
        for _ in range(ANSWERS_MAX):
            try:
                return parsed(option, self._ask(question, option))
            except ConfigurationError as error:
                self._say(str(error))
        raise NoAnswerError

    def _ask(self, question: str, name: str) -> str:
        answer = self._asker.ask(question).strip()
        self._log.note("answered", f"{question} {answer}", question=name, answer=answer)
        return answer

    def _carry_out(self, choice: Choice, picture: Picture) -> RunbookEnd | None:
        if choice.act is Act.RECHECK:
            self._sides.wait(RECHECK_S)
        elif choice.act is Act.COMPARE:
            self._compare(picture)
        elif choice.act is not Act.ABORT_HANGING:
            named = {option: self._value(option, question) for option, question in choice.inputs.items()}
            if choice.act is Act.BY_HAND:
                return self._by_hand(choice, named, picture)
            return self._recover(choice, named, picture)
        elif self._confirm(choice):
            self._did("\n".join(self._sides.abort_hanging(picture)), choice=choice.name)
        return None

    def _by_hand(self, choice: Choice, named: dict[str, object], picture: Picture) -> RunbookEnd:
        if choice.on_sink and choice.accepts:
            named["reason"] = self._reason(choice)
        steps = [f"{number}. {self._sides.with_cluster(step)}" for number, step in enumerate(choice.todo, start=1)]
        pasted = choice.command(self._sides.sink_flags(picture.transactional_id), named)
        todo = [f"To do by hand ({choice.name}):", *steps, *([pasted] if pasted else [])]
        return self._left("\n".join(todo), picture)

    def _recover(self, choice: Choice, named: dict[str, object], picture: Picture) -> RunbookEnd | None:
        """Dry run, confirmation, recovery. A refusal is shown, and the sink is looked at again."""
        keywords = choice.keywords(named)
        try:
            if self._automatic or self._dry_run(choice, keywords, picture):
                self._act(choice, keywords, picture)
        except (ConfigurationError, HaltError, TakeOverRefusedError) as error:
            self._log.note("failed", str(error), error=type(error).__name__, choice=choice.name)
            if self._automatic:
                return self._left(str(error), picture)
            self._say(str(error))
            if isinstance(error, HaltError):
                self._told = error.cause
        return None

    def _dry_run(self, choice: Choice, keywords: dict[str, Any], picture: Picture) -> bool:
        """Show the planned changes, and ask for confirmation; with the reason in ``keywords`` if one is needed."""
        planned = self._sides.recover(picture.transactional_id, **keywords, dry_run=True)
        if planned.cause is HaltCause.OPEN_TRANSACTION and "open_transaction" not in keywords:
            self._say("Kafka has an open transaction that no state row names: decide first how it ends")
            self._told = HaltCause.OPEN_TRANSACTION
            return False
        for action in planned.actions:
            self._say(f"  - {action}")
        if choice.accepts:
            keywords["reason"] = self._reason(choice)
        return self._confirm(choice)

    def _act(self, choice: Choice, keywords: dict[str, Any], picture: Picture) -> None:
        transactional_id = picture.transactional_id
        try:
            report = self._sides.recover(transactional_id, **keywords)
        except TakeOverRefusedError as error:
            if self._automatic:
                raise
            self._say(str(error))
            if self._ask(f"Its driver is running, or may be. Stop it? [{TAKE_OVER}/no]", "take_over") != TAKE_OVER:
                return
            keywords["take_over"] = True
            report = self._sides.recover(transactional_id, **keywords)
        self._told = None
        if choice.accepts:
            self._accepted.append(choice.accepts)
        command = choice.command(self._sides.sink_flags(transactional_id), keywords)
        done = "\n".join([str(report), "In the history:", *self._sides.last_actions(transactional_id)])
        plain = {name: value.name.lower() if isinstance(value, Enum) else value for name, value in keywords.items()}
        self._did(done, choice=choice.name, command=command, report=report.as_json(), keywords=plain)

    def _did(self, text: str, **fields: Any) -> None:
        self._acted = True
        self._say("Done:")
        self._say(indent(text, "  "))
        self._log.note("did", text, **fields)

    def _nothing_wrong(self, picture: Picture) -> RunbookEnd:
        """The outcome; verified if something was done."""
        if self._acted:
            if self._compare(picture) == "different" and not self._accepted:
                self._left("Topic and table differ, and the difference was not accepted", picture)
                return RunbookEnd.LEFT
        elif not self._automatic and self._told is None:
            self._say("There is nothing to do. If the job has stopped with an error, call the runbook with that line:")
            sink = self._sides.sink_flags(picture.transactional_id)
            self._say(f"  spark-2pc runbook {sink} --cause 'THE LINE OF THE ERROR'")
        return RunbookEnd.SETTLED

    def _compare(self, picture: Picture) -> Verdict:
        self._say("Comparing topic and table (reads both):")
        only_open = picture.problem is HaltCause.OPEN_TRANSACTION
        found = self._sides.compare(picture.transactional_id, open_transaction=only_open)
        self._say(indent(found.text, "  "))
        if found.verdict == "different" and self._accepted:
            self._say(f"  accepted: {'; '.join(self._accepted)}. Other differences are not accepted")
        self._log.note("verified", found.text, verdict=found.verdict, accepted=list(self._accepted))
        return found.verdict

    def _left(self, text: str, picture: Picture) -> RunbookEnd:
        symptom = picture.problem
        self._say(text)
        self._say(f"More: RUNBOOK.md#{symptom.value}")
        self._log.note("left", text, symptom=symptom.value)
        return _ENDINGS.get(symptom, RunbookEnd.LEFT)


def needs_care(picture: Picture) -> bool:
    """Whether a sink needs a person: not if it is fine, working on a batch, or belongs to another cluster."""
    at_work = picture.report is not None and picture.report.condition == "at_work"
    return not at_work and picture.problem not in {Symptom.NOTHING_WRONG, Symptom.ELSEWHERE}
