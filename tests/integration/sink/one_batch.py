"""One batch of numbers through a sink, in a driver of its own: for tests that need other settings of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.testing import assert_same_multiset, read_topic
from tests.harness.streams import sink_options
from tests.integration.postgres.database_tables import rows

if TYPE_CHECKING:
    from tests.harness.providers import Broker

ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class OneBatch:
    """Where a batch goes, and the directory that its driver works in."""

    kafka: Broker
    database: str
    topic: str
    transactional_id: str
    directory: Path

    def options(self, **options: Any) -> dict[str, Any]:
        """Of the sink."""
        sides = {"broker": self.kafka, "database": self.database, "topic": self.topic}
        return sink_options(**{"transactional_id": self.transactional_id, **sides, **options})

    def run(
        self, *driver: str, environment: dict[str, str] | None = None, deadline_s: int = 150, **options: Any
    ) -> tuple[str, str]:
        """Run a driver, a module with its first arguments, to its good end; its standard output and error.

        The sink's options as JSON and the directory follow as its last arguments.
        """
        done = subprocess.run(
            [sys.executable, "-m", *driver, json.dumps(self.options(**options)), str(self.directory)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout, done.stderr

    def assert_all_there(self, count: int) -> None:
        """Every number below ``count`` is on both sides, once, and no table of the sink is left."""
        written = rows(self.database, "SELECT id FROM target")
        assert_same_multiset(written, [(number,) for number in range(count)], what="rows")
        committed = [record.value for record in read_topic(self.kafka.bootstrap, self.topic)]
        assert_same_multiset(committed, [f"value-{number}".encode() for number in range(count)], what="records")
        assert rows(self.database, "SELECT relname FROM pg_class WHERE relname ~ '^_2pc'") == []

    def records_not_committed(self, count: int) -> int:
        """How many records of aborted transactions are in the topic, with ``count`` committed ones."""
        return len(read_topic(self.kafka.bootstrap, self.topic, isolation="read_uncommitted")) - count
