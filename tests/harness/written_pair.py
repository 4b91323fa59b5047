"""A topic and a table that the batch driver has written, in this process: the two sides that `verify` compares.

No Spark, and no process beside the servers: a pair of four batches is there within a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from sqlalchemy import Connection

from jdbc_state.connections import driver_connection
from spark_2pc_sink import VerifyReport, verify
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.driver.step_observer import StepTimes
from spark_2pc_sink.testing import read_topic
from tests.harness.driver_config import Row
from tests.harness.driver_main import open_driver
from tests.harness.driver_rows import RowsWork
from tests.harness.providers import Broker
from tests.harness.sql import run_sql

TABLE = "target"
PARTITIONS = 3
#: Text that JSON, COPY and SQL have to escape, or must not change.
_PAYLOADS = ("plain", "quote \" ' and comma,", "äö€ 漢字 🚲", "brace {} [] $1 %s", " blanks ")


def rows_of(batch: int, count: int = 20, *, note: str = "new") -> list[Row]:
    return [(batch * 1_000 + n, f"{note} {_PAYLOADS[n % len(_PAYLOADS)]}") for n in range(count)]


class WrittenPair:
    """One sink's two sides, open for more batches. A context manager.

    Args:
        upsert: the table keeps the last row of each id; else it is appended to, and has no key.
    """

    def __init__(self, broker: Broker, database: str, topic: str, transactional_id: str, *, upsert: bool) -> None:
        self.broker = broker
        self.database = database
        self.topic = topic
        self.transactional_id = transactional_id
        self.upsert = upsert
        self.batches = 0
        self._open = ExitStack()

    def __enter__(self) -> WrittenPair:
        key = " PRIMARY KEY" if self.upsert else ""
        self.sql(f"CREATE TABLE {TABLE} (id bigint{key}, payload text)")
        self._options = SinkOptions.parse(
            transactional_id=self.transactional_id,
            # Small record batches are sent while a batch is still encoded.
            kafka={"bootstrap.servers": self.broker.bootstrap, "batch.size": 100},
            database=self.database,
            topic=self.topic,
            key="cast(id AS string)",
            table=TABLE,
            **({"mode": "upsert", "upsert_keys": ["id"]} if self.upsert else {}),
        )
        with ExitStack() as opened:
            self._times = StepTimes(SystemClock())
            self._driver, _ = opened.enter_context(open_driver(self._options, "query-1", self._times))
            self._driver.recover()
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def write(self, *batches: Sequence[Row]) -> None:
        for rows in batches:
            self._times.begin()
            self._driver.write(self.batches, _JsonWork(self._options, list(rows), upsert=self.upsert))
            self.batches += 1

    def verify(self, **options: Any) -> VerifyReport:
        """Compare both sides, with what a command line would have to say about this pair."""
        return verify(**{**self.sides(), **options})

    def sides(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "kafka": {"bootstrap.servers": self.broker.bootstrap},
            "database": self.database,
            "table": TABLE,
            "mode": "upsert" if self.upsert else "append",
            "keys": ["id"],
        }

    def place(self, row_id: int) -> dict[str, object]:
        """Where the last record of an id is, by the names of a `Difference`."""
        records = [record for record in read_topic(self.broker.bootstrap, self.topic) if record.key == b"%d" % row_id]
        return {"topic": self.topic, "partition": records[-1].partition, "offset": records[-1].offset}

    def offsets(self, batch: int) -> dict[int, tuple[int, int]]:
        """The first and the last offset of a batch, by partition, as its line of the history has them."""
        ((offsets,),) = self.sql(
            "SELECT kafka_offsets FROM kafka_transaction_state_history WHERE transactional_id = %s AND batch_id = %s",
            self.transactional_id,
            batch,
        )
        return {int(name.rpartition("-")[2]): (first, last) for name, (first, last) in offsets.items()}

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return run_sql(self.database, statement, *values)


class _JsonWork(RowsWork):
    """Rows whose record's value is the whole row as JSON, and that an upsert may put in the place of others."""

    def __init__(self, options: SinkOptions, rows: list[Row], *, upsert: bool) -> None:
        super().__init__(options, rows, lambda: None)
        self._upsert = upsert

    def value(self, row: Row) -> str:
        return json.dumps({"id": row[0], "payload": row[1]}, ensure_ascii=False, separators=(",", ":"))

    def _copy(self, connection: Connection, pieces: Iterator[bytes]) -> int:
        if not self._upsert:
            return super()._copy(connection, pieces)
        rows = [line.split("\t") for piece in pieces for line in piece.decode().split("\n") if line]
        with driver_connection(connection).cursor() as cursor:
            for row in rows:
                cursor.execute(
                    f"INSERT INTO {TABLE} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET payload = excluded.payload",
                    row,
                )
        return len(rows)
