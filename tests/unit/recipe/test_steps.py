"""The steps of a batch."""

from __future__ import annotations

from pathlib import Path

from spark_2pc_sink.recipe.steps import Step

PAGE = Path(__file__).parents[3] / "docs" / "how-it-works.md"


def test_the_manual_has_every_step_once_in_order() -> None:
    """KIP-939, "Normal processing recipe": send, prepare, update data and state in one transaction, commit in Kafka."""
    rows = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    first = rows.index("step") + 1
    assert rows[first : first + len(Step)] == [step.name.lower() for step in Step]
