"""The sink where tasks run in processes that share nothing with the driver but Spark and its port."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.harness.one_batch_main import ROWS

if TYPE_CHECKING:
    from tests.integration.sink.one_batch import OneBatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.spark]
#: Executors start first.
DEADLINE_S = 350


def test_executors_send_to_the_driver(one_batch: OneBatch) -> None:
    """By a connection that is encrypted, as Spark's own are."""
    stdout, _ = one_batch.run(
        "tests.harness.one_batch_main",
        "encrypt",
        "",
        environment={"SPARK_HOME": str(home_of_spark(one_batch.directory))},
        key="id",
        deadline_s=DEADLINE_S,
    )
    (said,) = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    assert said == {"tasks": [2], "encrypted": True}
    one_batch.assert_all_there(ROWS)


def home_of_spark(directory: Path) -> Path:
    """Spark as it is installed, in a folder of its own: executors leave their logs in it."""
    home = directory / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    return home
