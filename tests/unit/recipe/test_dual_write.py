"""The table of steps."""

from __future__ import annotations

from spark_2pc_sink.recipe.dual_write import STEPS, Step


def test_the_table_has_every_step_once_in_order() -> None:
    """KIP-939, "Normal processing recipe": send, prepare, update data and state in one transaction, commit in Kafka."""
    assert [rule.step for rule in STEPS] == list(Step)


def test_the_decision_is_the_point_of_no_return() -> None:
    """Everything before it can be undone on both sides, nothing from it on (D4)."""
    assert [rule.step for rule in STEPS if rule.undoable] == [step for step in Step if step < Step.DECIDE]


def test_every_step_says_what_a_crash_after_it_leads_to() -> None:
    """A row without a consequence would be a step that nobody has thought through."""
    assert all(rule.does and rule.where in {"driver", "tasks"} and rule.after_crash for rule in STEPS)
