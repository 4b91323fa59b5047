"""The picture that README.md begins with: all steps are in it, in their order, and it is seen wherever README is."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from spark_2pc_sink.ids import PreparedTxnState, ProducerIdAndEpoch, TransactionState
from spark_2pc_sink.recipe.resolve import KafkaView, Resolution, RowStatus, RowView, Verdict, resolve
from spark_2pc_sink.recipe.steps import Step
from tools.reference_pages.recipe_picture import ACTS, AFTER_A_CRASH, NOT_DRAWN, WIDTH, name_of, recipe_picture

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"
#: What a page shows without making it smaller.
WIDTH_MAX = 900


def parts(name: str) -> list[ET.Element]:
    return list(ET.fromstring(recipe_picture()).iter(f"{SVG}{name}"))  # noqa: S314 - made here


def texts() -> list[str]:
    return ["".join(text.itertext()) for text in parts("text")]


def test_each_step_is_drawn_or_left_out_on_purpose() -> None:
    drawn = [step for act in ACTS for step in act.steps]
    assert drawn == sorted(drawn)
    assert sorted([*drawn, AFTER_A_CRASH, *NOT_DRAWN]) == list(Step)
    for act in ACTS:
        assert ", ".join(map(name_of, act.steps)) in texts()
    assert name_of(AFTER_A_CRASH) in texts()


def test_the_database_alone_decides() -> None:
    """One arrow goes there, and before it everything can be undone."""
    assert [act.steps for act in ACTS if act.side == "database"] == [(Step.DECIDE,)]


def test_recovery_ends_the_transaction_as_the_picture_says() -> None:
    """Yes: the state row names the open transaction. No: it names the one before."""
    pair = ProducerIdAndEpoch(7, 10)
    kafka = KafkaView(TransactionState.ONGOING, pair, transaction_version=2, cluster_id="here")
    named = resolve(RowView(RowStatus.DECIDED, PreparedTxnState("7:10"), cluster_id="here"), kafka)
    unnamed = resolve(
        RowView(RowStatus.DONE, PreparedTxnState("7:8"), PreparedTxnState("7:9"), cluster_id="here"), kafka
    )
    assert isinstance(named, Resolution)
    assert isinstance(unnamed, Resolution)
    assert (named.verdict, unnamed.verdict) == (Verdict.COMMIT, Verdict.ABORT)
    assert [text for text in texts() if text.startswith(("yes: ", "no: "))] == ["yes: commit", "no: abort"]


def test_it_needs_nothing_from_elsewhere() -> None:
    """A page shows it as an image, where no font and no other file is loaded, and on whatever background."""
    picture = recipe_picture()
    assert WIDTH <= WIDTH_MAX
    assert re.findall("font-family: ([^;]+);", picture) == ["sans-serif"]
    assert re.findall(r"https?://[^\"]+", picture) == [SVG.strip("{}")]
    first = parts("rect")[0]
    assert (first.get("fill"), first.get("width")) == ("#ffffff", str(WIDTH - 1))


def test_who_does_not_see_it_is_told() -> None:
    """README has one picture, and its text names all three steps and what is done after a crash.

    It is one line: the site puts words together that a line break parts.
    """
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert [file for _, file in pictures] == ["docs/images/recipe.svg"]
    assert "\n" not in pictures[0][0]
    for words in (*"123", "Kafka", "PostgreSQL", "COMMIT", "After a crash"):
        assert words in pictures[0][0]
