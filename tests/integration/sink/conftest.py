"""What tests of the sink share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.sink.one_batch import OneBatch

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.providers import Broker


@pytest.fixture
def one_batch(tmp_path: Path, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str) -> OneBatch:
    """A batch for a topic with eight partitions."""
    return OneBatch(kafka, database, topic(partitions=8), transactional_id, tmp_path)
