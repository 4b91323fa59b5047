"""The table of steps."""

from __future__ import annotations

from pathlib import Path

from spark_2pc_sink.recipe.steps import STEPS, Step

PAGE = Path(__file__).parents[3] / "docs" / "how-it-works.md"


def test_the_table_has_every_step_once_in_order() -> None:
    """KIP-939, "Normal processing recipe": send, prepare, update data and state in one transaction, commit in Kafka."""
    assert [rule.step for rule in STEPS] == list(Step)


def test_the_decision_is_the_point_of_no_return() -> None:
    """Everything before it can be undone on both sides, nothing from it on (D4)."""
    assert [rule.step for rule in STEPS if rule.undoable] == [step for step in Step if step < Step.DECIDE]


def test_the_manual_has_this_table() -> None:
    """A reader of either knows all of it."""
    lines = [f"| {rule.step.name.lower()} | {rule.where} | {rule.does} | {rule.after_crash} |" for rule in STEPS]
    assert "\n".join(lines) in PAGE.read_text()
