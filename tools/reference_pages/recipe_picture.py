"""The picture that README.md begins with, as SVG: a batch on both sides, and what is done after a crash.

Time goes down, as in a diagram of a sequence. The names of the steps and of what recovery does are those of the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from xml.sax.saxutils import escape

from spark_2pc_sink.recipe.resolve import Verdict
from spark_2pc_sink.recipe.steps import Step

Side = Literal["kafka", "database"]


@dataclass(frozen=True)
class Act:
    """What stands beside one number.

    Attributes:
        steps: of the recipe, in their order.
        side: where the arrow goes.
        y: of the arrow.
        about: what is said below the arrow, line by line.
    """

    steps: tuple[Step, ...]
    side: Side
    y: int
    about: tuple[str, ...]


ACTS: Final = (
    Act(
        (Step.BEGIN, Step.PRODUCE, Step.PREPARE),
        "kafka",
        120,
        ("the records, in one transaction:", "no reader sees them yet"),
    ),
    Act(
        (Step.DECIDE,),
        "database",
        192,
        ("the rows and the state row,", "in ONE database transaction:", "its COMMIT is the decision"),
    ),
    Act((Step.COMPLETE,), "kafka", 264, ("the transaction is committed:", "readers see the records")),
)
#: What a crash leaves to the next start.
AFTER_A_CRASH: Final = Step.RECOVER
#: They only read or note on one side; docs/how-it-works.md has them.
NOT_DRAWN: Final = (Step.PLACE, Step.NOTE)

WIDTH: Final = 840
_HEIGHT: Final = 548
_TITLE: Final = "A Spark micro-batch goes to Kafka and PostgreSQL, or to neither"
_KAFKA: Final = 115
_SPARK: Final = 420
_DATABASE: Final = 725
_HEADS: Final = (
    (_KAFKA, "kafka", "Kafka topic", "records"),
    (_SPARK, "spark", "Spark micro-batch", "foreachBatch(sink)"),
    (_DATABASE, "database", "PostgreSQL table", "rows, and a state row"),
)
#: Where the lines below the heads begin, and where the part about a crash does.
_LINES_Y: Final = 68
_CRASH_Y: Final = 330
#: Its heading has the width for itself.
_CRASH_HEADING: Final = 38
_LINE_HEIGHT: Final = 18
#: A background of its own, as a page may be light or dark. The font is the reader's: there is room for the widest.
_FRAME: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<title>{title}</title>
<!-- Made by `make reference-pages`. -->
<style>
text {{ font-family: sans-serif; font-size: 14px; fill: #1f2328; text-anchor: middle }}
.name {{ font-size: 15px; font-weight: bold }}
.head {{ fill: #ffffff; font-weight: bold }}
.number {{ fill: #ffffff; font-size: 15px; font-weight: bold }}
.small {{ fill: #ffffff; font-size: 12px }}
.visible {{ fill: #1a7f37; font-size: 12px }}
.hidden {{ fill: #9a6700; font-size: 12px }}
.kafka {{ fill: #24292f }}
.spark {{ fill: #b8410b }}
.database {{ fill: #2a5d8a }}
.line {{ stroke: #8c959f; stroke-dasharray: 3 4 }}
.arrow {{ stroke: #1f2328; stroke-width: 2 }}
.commit {{ stroke: #1a7f37; stroke-width: 2 }}
.abort {{ stroke: #cf222e; stroke-width: 2 }}
</style>
<defs>
{ends}
</defs>
<rect x="0.5" y="0.5" width="{inner_width}" height="{inner_height}" rx="10" fill="#ffffff" stroke="#d0d7de"/>
<path d="M1 {crash}H{right}V{corner}a9.5 9.5 0 0 1 -9.5 9.5H10.5a9.5 9.5 0 0 1 -9.5 -9.5z" fill="#fff3d6"/>
{drawn}
</svg>
"""
_COLOURS: Final = {"arrow": "#1f2328", "commit": "#1a7f37", "abort": "#cf222e"}


def recipe_picture() -> str:
    """The picture as SVG."""
    ends = (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="12" markerHeight="12" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
        for name, colour in _COLOURS.items()
    )
    return _FRAME.format(
        width=WIDTH,
        height=_HEIGHT,
        inner_width=WIDTH - 1,
        inner_height=_HEIGHT - 1,
        right=WIDTH - 1,
        corner=_HEIGHT - 10.5,
        crash=_CRASH_Y,
        title=_TITLE,
        ends="\n".join(ends),
        drawn="\n".join((*_sides(), *_batch(), *_after_a_crash())),
    )


def name_of(step: Step) -> str:
    """A step as the picture has it."""
    return step.name.lower()


def _sides() -> Iterator[str]:
    """The heads with their lines, and since when readers see what is there."""
    for x, side, name, about in _HEADS:
        yield f'<path class="line" d="M{x} {_LINES_Y}V{_CRASH_Y}M{x} {_CRASH_Y + _CRASH_HEADING}V{_HEIGHT - 16}"/>'
        yield f'<rect class="{side}" x="{x - 95}" y="20" width="190" height="48" rx="6"/>'
        yield _text(x, 41, name, "head")
        yield _text(x, 58, about, "small")
    sent, decided, complete = (act.y for act in ACTS)
    yield _bar(_KAFKA, sent, complete, "#d4a72c")
    yield _bar(_KAFKA, complete, _CRASH_Y, "#1a7f37")
    yield _bar(_DATABASE, decided, _CRASH_Y, "#1a7f37")
    yield _text(_KAFKA - 50, (sent + complete) // 2 + 4, "not visible", "hidden")
    yield _text(_KAFKA - 50, (complete + _CRASH_Y) // 2 + 4, "visible", "visible")
    yield _text(_DATABASE + 50, (decided + _CRASH_Y) // 2 + 4, "visible", "visible")


def _batch() -> Iterator[str]:
    """The numbered arrows."""
    for number, act in enumerate(ACTS, 1):
        yield from _arrow(_SPARK, _KAFKA if act.side == "kafka" else _DATABASE, act.y)
        yield from _beside(act.side, act.y, ", ".join(name_of(step) for step in act.steps), act.about)
        yield f'<circle class="spark" cx="{_SPARK}" cy="{act.y}" r="13"/>'
        yield _text(_SPARK, act.y + 5, str(number), "number")


def _after_a_crash() -> Iterator[str]:
    """The state row is read, and Kafka's transaction ended as it says."""
    commit, abort = (verdict.value.partition(" ")[0] for verdict in (Verdict.COMMIT, Verdict.ABORT))
    yield _text(_SPARK, _CRASH_Y + 26, "After a crash, the next start does this first", "name")
    top = _CRASH_Y + _CRASH_HEADING + 30
    yield from _arrow(_DATABASE, _SPARK, top)
    question = ("the state row is read: does it", "name Kafka's transaction?")
    yield from _beside("database", top, name_of(AFTER_A_CRASH), question)
    yield from _arrow(_SPARK, _KAFKA, top + 34, "commit")
    yield from _beside("kafka", top + 34, f"yes: {commit}", ("both sides have the batch",))
    yield from _arrow(_SPARK, _KAFKA, top + 98, "abort")
    yield from _beside("kafka", top + 98, f"no: {abort}", ("neither has it: Spark replays it",))


def _middle(side: Side) -> int:
    """Between the batch and a side."""
    return (_SPARK + (_KAFKA if side == "kafka" else _DATABASE)) // 2


def _beside(side: Side, y: int, name: str, about: Sequence[str]) -> Iterator[str]:
    """A name above an arrow, and lines below."""
    yield _text(_middle(side), y - 9, name, "name")
    for number, line in enumerate(about, 1):
        yield _text(_middle(side), y + 2 + number * _LINE_HEIGHT, line)


def _arrow(begin: int, end: int, y: int, kind: str = "arrow") -> Iterator[str]:
    """It ends at the edge of the bar."""
    tip = end + (7 if end < begin else -7)
    yield f'<path class="{kind}" marker-end="url(#{kind})" d="M{begin} {y}H{tip}"/>'


def _bar(x: int, begin: int, end: int, colour: str) -> str:
    return f'<rect x="{x - 6}" y="{begin}" width="12" height="{end - begin}" fill="{colour}"/>'


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x}" y="{y}">{escape(text)}</text>'
