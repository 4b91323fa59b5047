"""Both sides of a sink as batches leave them, written without Spark: records by librdkafka, rows by SQL.

So a test decides what each side has, to the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message, Producer

from jdbc_state import Decision, SqlStateStore, StateRow
from spark_2pc_sink import VerifyReport, verify
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.verification.record_digest import MODULUS, content_of, digest_text, record_hash
from spark_2pc_sink.verification.topic_reader import TopicReader
from tests.harness.providers import Broker

DEADLINE_S = 30


@dataclass(frozen=True)
class Written:
    """Records that were sent: where they are, and their digest."""

    offsets: Mapping[str, tuple[int, int]]
    records: int
    digest: str


@dataclass
class Sides:
    """One sink.

    Args:
        broker: of the topics.
        database: SQLAlchemy URL.
        topic: of the sink.
        transactional_id: of the sink.
        table: its name; made by the test.
    """

    broker: Broker
    database: str
    topic: str
    transactional_id: str
    table: str = "target"
    generation: int = 0
    batches: int = 0
    batch_offsets: list[Mapping[str, tuple[int, int]]] = field(default_factory=list)

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own."""
        with (
            closing(SqlStateStore(self.database)) as store,
            closing(store.database.session("test")) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def send(
        self,
        records: Iterable[tuple[str | None, bytes | None]],
        *,
        commit: bool = True,
        transactional_id: str | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Written:
        """Send keys and values in one transaction, and end it."""
        name = transactional_id or self.transactional_id
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "transactional.id": name, "linger.ms": 5})
        places: list[tuple[str, int]] = []

        def note(error: object, message: Message) -> None:
            assert error is None, error
            places.append((f"{message.topic()}-{message.partition()}", message.offset() or 0))

        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        digest = count = 0
        for key, value in records:
            producer.produce(self.topic, value=value, key=key, headers=list(headers), on_delivery=note)
            encoded = None if key is None else key.encode()
            digest += record_hash(self.topic, content_of(encoded, value, headers))
            count += 1
        assert producer.flush(DEADLINE_S) == 0
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
        offsets: dict[str, tuple[int, int]] = {}
        for name, offset in places:
            first, last = offsets.get(name, (offset, offset))
            offsets[name] = (min(first, offset), max(last, offset))
        return Written(offsets, count, digest_text(digest % MODULUS))

    def write(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        statement: str = "INSERT INTO target SELECT * FROM json_populate_record(NULL::target, %s)",
        values: Sequence[bytes] | None = None,
        key: str = "id",
        done: bool = True,
        commit: bool = True,
    ) -> StateRow:
        """One batch: its records, its rows, its decision, and what became of it."""
        values = [json.dumps(row).encode() for row in rows] if values is None else values
        keys = [str(row[key]) if key in row else None for row in rows]
        sent = self.send(zip(keys, values, strict=True), commit=commit)
        reader = TopicReader(KafkaOptions.parse({"bootstrap.servers": self.broker.bootstrap}))
        with closing(SqlStateStore(self.database)) as store:
            if not self.generation:
                store.prepare_schema()
            row = store.claim(
                transactional_id=self.transactional_id, cluster_id=reader.cluster_id(), query_id="query", run_id="run"
            )
            self.generation = row.generation
            with store.deciding(self.transactional_id, row.generation) as transaction:
                for each in rows:
                    transaction.connection.exec_driver_sql(statement, (json.dumps(each),))
                transaction.decide(
                    Decision(
                        prepared=f"7:{self.batches}",
                        expected=row.prepared_transaction_state,
                        batch_id=self.batches,
                        row_count=len(rows),
                        record_count=sent.records,
                        digest=sent.digest,
                        kafka_offsets=sent.offsets,
                        topic_ids=reader.describe([self.topic]).topic_ids,
                    )
                )
            self.batches += 1
            self.batch_offsets.append(sent.offsets)
            if done:
                return store.mark_done(self.transactional_id, row.generation, f"7:{self.batches - 1}")
            found = store.read(self.transactional_id)
            assert found is not None
            return found

    def verify(self, **options: Any) -> VerifyReport:
        """What verify says; of this table unless another is named."""
        return verify(
            **{
                "transactional_id": self.transactional_id,
                "kafka": {"bootstrap.servers": self.broker.bootstrap},
                "database": self.database,
                "table": self.table,
                "wait_ms": 2_000,
                **options,
            }
        )


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Rows with the keys from ``first`` on."""
    numbers = range(first, first + count)
    return [{"id": number, "name": f'n{number} äö€ \\ "q"', "amount": number / 4} for number in numbers]
