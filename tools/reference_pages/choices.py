"""The parts of RUNBOOK.md and of docs/after-a-crash.md that are made of the table of choices."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from spark_2pc_sink.choices import NO_FACTS, PLACEHOLDERS, TABLE, Act, Choice, Entry, HaltCause, Problem, Symptom
from spark_2pc_sink.choices.halts import HALTS
from spark_2pc_sink.choices.symptoms import SYMPTOMS
from tools.reference_pages.markdown import code, table, with_part

_COLUMNS: Final = 125


def with_sections(page: str) -> str:
    """RUNBOOK.md with its sections as the table has them."""
    said = table(
        ("the error says", "section"),
        ((_quoted(entry), f"[{problem.value}](#{problem.value})") for problem, entry in TABLE.items() if entry.says),
    )
    page = with_part(page, "errors", said)
    page = with_part(page, "symptoms", "\n\n".join(_section(problem, entry) for problem, entry in SYMPTOMS.items()))
    return with_part(page, "halts", "\n\n".join(_section(problem, entry) for problem, entry in HALTS.items()))


def with_causes(page: str) -> str:
    """docs/after-a-crash.md with its table of causes."""
    rows = (
        (
            _quoted(entry),
            code(problem.value) if isinstance(problem, HaltCause) else "",
            entry.meaning,
            "; ".join(map(_in_words, entry.choices)),
        )
        for problem, entry in TABLE.items()
        if entry.says
    )
    page = with_part(
        page, "causes", table(("it says", "`cause`", "what it means", "what settles it, the safest first"), rows)
    )
    return with_part(page, "job only", _filled(f"Only the job can detect {_names()}: `status` does not show them."))


def _names() -> str:
    return ", ".join(code(problem.value) for problem, entry in TABLE.items() if entry.job_only)


def _quoted(entry: Entry) -> str:
    return f'"{entry.says} …"'


def _in_words(choice: Choice) -> str:
    """A choice with its flags, or with the options of the sink."""
    named = {option: PLACEHOLDERS[option] for option in choice.inputs}
    command = choice.filled(NO_FACTS).command("…", named) if choice.on_sink or choice.act is Act.RECOVER else ""
    command = command.removeprefix("spark-2pc recover … ").removeprefix("DualWriteSink(…, ").removesuffix(")")
    once = " once, on the sink" if choice.on_sink else ""
    return NO_FACTS.filled(choice.title) + (f" ({code(command)}{once})" if command else "")


def _section(problem: Problem, entry: Entry) -> str:
    """The section of a problem: what it means, how to choose, and a walk through the runbook."""
    told = f" --cause {problem.value}" if entry.job_only or entry.seen_as else ""
    parts = [f"### {problem.value}", _filled(f"**{entry.title}.** {entry.meaning}")]
    parts += [_filled(part) for part in entry.advice.split("\n\n") if part]
    offered = [f"- `{choice.name}`: {NO_FACTS.filled(choice.title)}" for choice in entry.choices]
    parts += ["\n".join(_filled(line, indent="  ") for line in offered)] if offered else []
    walk = [line for name, reason in entry.walk for line in _answers(entry, name, reason)]
    if walk or problem is Symptom.NOTHING_WRONG:
        parts.append(_block("console", problem, f"$ spark-2pc runbook … --transactional-id ID{told}"))
    if walk:
        parts.append(_block("answers", problem, *walk))
    for name, reason in entry.walk:
        choice = _chosen(entry, name)
        if choice is not None and choice.on_sink:
            parts += ["Start the job once with what it prints:", _block("python", problem, _start(choice, reason))]
    return "\n\n".join([*parts, *([entry.more] if entry.more else [])])


def _answers(entry: Entry, name: str, reason: str) -> Iterator[str]:
    """What the runbook asks about one choice, each with its answer."""
    yield f"Which one → {name}"
    choice = _chosen(entry, name)
    if choice is None:
        return
    for option, question in choice.inputs.items():
        yield f"{' '.join(question.split()[:2])} → {PLACEHOLDERS[option]}"
    if choice.accepts and (choice.on_sink or choice.act is Act.RECOVER):
        yield f"Why → {reason}"
    if choice.act in {Act.RECOVER, Act.ABORT_HANGING}:
        yield "Do it → yes"


def _chosen(entry: Entry, name: str) -> Choice | None:
    """The choice of this name, after it one of an owed batch; None if the dialogue is left."""
    after = TABLE[Symptom.OWED].choices
    return next((choice for choice in (*entry.choices, *after) if choice.name == name), None)


def _start(choice: Choice, reason: str) -> str:
    given = [f"{name}={value}" if value is True else f"{name}=N" for name, value in choice.options.items()]
    given += [f'{option}="{PLACEHOLDERS[option]}"' for option in choice.inputs]
    return f"DualWriteSink({', '.join(['…', *given, f'reason={chr(34)}{reason}{chr(34)}'])})"


def _block(kind: str, problem: Problem, *lines: str) -> str:
    return "\n".join([f"```{kind} incident={problem.value}", *lines, "```"])


def _filled(text: str, *, indent: str = "") -> str:
    return textwrap.fill(text, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
