"""Names of the broker's properties as variables of its image."""

from __future__ import annotations

import pytest

from tests.harness.containers_kafka import environment_name


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("node.id", "KAFKA_NODE_ID"),
        ("transaction.two.phase.commit.enable", "KAFKA_TRANSACTION_TWO_PHASE_COMMIT_ENABLE"),
        ("a-b.c", "KAFKA_A___B_C"),
        ("sasl_x.y", "KAFKA_SASL__X_Y"),
    ],
)
def test_a_property_becomes_the_variable_that_the_image_turns_back(name: str, variable: str) -> None:
    """As apache/kafka documents it: a dot is _, an underscore __, a dash ___."""
    assert environment_name(name) == variable
