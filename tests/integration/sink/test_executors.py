"""The sink where tasks run in executors, which share nothing with the driver but Spark, Kafka and the database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.harness.cluster_main import ROWS

if TYPE_CHECKING:
    from tests.integration.sink.one_batch import OneBatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.spark]


@pytest.mark.parametrize("key", ["id", pytest.param(None, marks=pytest.mark.thorough)], ids=["keyed", "unkeyed"])
def test_executors_write_and_stage(one_batch: OneBatch, key: str | None) -> None:
    """Pieces go through the shuffle and rows through tables, of which nothing is left."""
    stdout, _ = one_batch.run(
        "tests.harness.cluster_main",
        environment={"SPARK_HOME": str(home_of_spark(one_batch.directory))},
        key=key,
        inline_copy_bytes_max=0,
    )
    (staged,) = [json.loads(line) for line in stdout.splitlines() if line.startswith("[")]
    assert len(staged) > 1
    one_batch.assert_all_there(ROWS)


def home_of_spark(directory: Path) -> Path:
    """Spark as it is installed, in a folder of its own: executors leave their logs in it."""
    home = directory / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    return home
