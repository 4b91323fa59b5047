"""Kafka's own ``kafka-features.sh`` shows and changes transaction.version of the reference coordinator."""

from __future__ import annotations

import os
import re

import pytest

from spark_2pc_sink.testing import CapabilityError, ReferenceCoordinator
from tests.harness.kafka_tools import features_tool, tool_command

pytestmark = [pytest.mark.java, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def _tool() -> None:
    """Skip where there is no Java or no tool, which is a failure in CI."""
    try:
        tool_command("kafka-features.sh")
    except CapabilityError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def shown(bootstrap: str) -> tuple[int, int]:
    """The finalized level, and the epoch of the features."""
    text = features_tool(bootstrap, "describe")
    found = re.search(r"transaction\.version\s.*FinalizedVersionLevel: (\d+)\s+Epoch: (\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


def test_a_level_that_was_answered_stays_over_a_kill() -> None:
    with ReferenceCoordinator(keep_prepared=False) as server:
        features_tool(server.bootstrap, "downgrade", "--feature", "transaction.version=0")
        server.kill()
        server.start()
        assert shown(server.bootstrap) == (0, 2)
