"""The sink where tasks run in executors, which share nothing with the driver but Spark, Kafka and the database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from spark_2pc_sink.testing import assert_same_multiset, read_topic
from tests.integration.sink.test_sink import table_rows
from tests.support.cluster_main import ROWS
from tests.support.streams import sink_options

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.providers import Broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.spark]


@pytest.mark.parametrize("key", ["id", pytest.param(None, marks=pytest.mark.thorough)], ids=["keyed", "unkeyed"])
def test_executors_write_and_stage(
    tmp_path: Path, kafka: Broker, database: str, topic: MakeTopic, transactional_id: str, key: str | None
) -> None:
    """Pieces go through the shuffle and rows through tables, of which nothing is left."""
    name = topic(partitions=8)
    options = sink_options(
        broker=kafka, database=database, transactional_id=transactional_id, topic=name, key=key, table="public.target"
    )
    arguments = json.dumps({**options, "inline_copy_bytes_max": 0}), str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.cluster_main", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "SPARK_HOME": str(home_of_spark(tmp_path))},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (staged,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(staged) > 1
    assert_same_multiset(table_rows(database, "id"), [(number,) for number in range(ROWS)], what="rows")
    committed = [record.value for record in read_topic(kafka.bootstrap, name)]
    assert_same_multiset(committed, [f"value-{number}".encode() for number in range(ROWS)], what="records")
    assert table_rows(database, "relname", "pg_class WHERE relname LIKE '\\_2pc\\_stage%'") == []


def home_of_spark(directory: Path) -> Path:
    """Spark as it is installed, in a folder of its own: executors leave their logs in it."""
    home = directory / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    return home
