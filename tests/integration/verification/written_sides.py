"""Both sides of a sink as batches leave them, written without Spark: records by librdkafka, rows by SQL.

So a test decides what each side has, to the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

from confluent_kafka import OFFSET_END, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from jdbc_state import Decision, SqlStateStore
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
    open_producers: list[Producer] = field(default_factory=list)
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

    def copy(self, table: str, file: TextIO) -> None:
        """Append a file of rows in COPY's text format."""
        with (
            closing(SqlStateStore(self.database)) as store,
            closing(store.database.session("test")) as connection,
            connection.cursor() as cursor,
        ):
            cursor.copy_expert(f"COPY {table} FROM STDIN", file)

    def send(
        self,
        records: Iterable[tuple[str | None, bytes | None]],
        *,
        transactional_id: str | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Written:
        """Send keys and values in one transaction of this or another producer, and commit it."""
        producer = self._producer(transactional_id or self.transactional_id)
        sent = self._produce(producer, records, headers=headers)
        producer.commit_transaction(DEADLINE_S)
        return sent

    def write(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        statement: str = "INSERT INTO target SELECT * FROM json_populate_record(NULL::target, %s)",
        values: Sequence[bytes] | None = None,
        end: Literal["done", "committed", "aborted", "open"] = "done",
        between: Callable[[], object] | None = None,
        count: int | None = None,
        layout: Mapping[str, Any] | None = None,
    ) -> None:
        """One batch in the sink's order: its records, its rows with the decision, and the end of the transaction.

        Args:
            rows: parameters of the statement, as JSON. The field ``id`` is the key of the record.
            statement: writes one row.
            values: of the records; by default the rows.
            end: how far it came: the row says so too, or Kafka alone has committed, or aborted, or neither.
            between: called when the first record is in the log and the others are not.
            count: as the number of records in the history, where that is to be wrong.
            layout: what the claim notes of the sink.
        """
        values = [json.dumps(row).encode() for row in rows] if values is None else values
        keys = [str(row["id"]) if "id" in row else None for row in rows]
        producer = self._producer(self.transactional_id)
        sent = self._produce(producer, zip(keys, values, strict=True), between=between)
        reader = TopicReader(KafkaOptions.parse({"bootstrap.servers": self.broker.bootstrap}))
        with closing(SqlStateStore(self.database)) as store:
            if not self.generation:
                store.prepare_schema()
            row = store.claim(
                transactional_id=self.transactional_id,
                cluster_id=reader.cluster_id(),
                query_id="query",
                run_id="run",
                layout=layout,
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
                        record_count=sent.records if count is None else count,
                        digest=sent.digest,
                        kafka_offsets=sent.offsets,
                        topic_ids=reader.describe([self.topic]).topic_ids,
                    )
                )
            self.batches += 1
            self.batch_offsets.append(sent.offsets)
            if end == "open":
                # A producer that is gone would try to end its transaction.
                self.open_producers.append(producer)
            elif end == "aborted":
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
            if end == "done":
                store.mark_done(self.transactional_id, row.generation, f"7:{self.batches - 1}")

    def _producer(self, transactional_id: str) -> Producer:
        settings = {"bootstrap.servers": self.broker.bootstrap, "transactional.id": transactional_id, "linger.ms": 5}
        producer = Producer(settings)
        producer.init_transactions(DEADLINE_S)
        return producer

    def _produce(
        self,
        producer: Producer,
        records: Iterable[tuple[str | None, bytes | None]],
        *,
        headers: Sequence[tuple[str, bytes]] = (),
        between: Callable[[], object] | None = None,
    ) -> Written:
        """Send records in a transaction that is left open."""
        places: list[tuple[str, int]] = []

        def note(error: object, message: Message) -> None:
            assert error is None, error
            places.append((f"{message.topic()}-{message.partition()}", message.offset() or 0))

        producer.begin_transaction()
        digest = count = 0
        for key, value in records:
            producer.produce(self.topic, value=value, key=key, headers=list(headers), on_delivery=note)
            encoded = None if key is None else key.encode()
            digest += record_hash(self.topic, content_of(encoded, value, headers))
            count += 1
            if between is not None and count == 1:
                assert producer.flush(DEADLINE_S) == 0
                between()
        assert producer.flush(DEADLINE_S) == 0
        offsets: dict[str, tuple[int, int]] = {}
        for name, offset in places:
            first, last = offsets.get(name, (offset, offset))
            offsets[name] = (min(first, offset), max(last, offset))
        return Written(offsets, count, digest_text(digest % MODULUS))

    def delete_all_records(self) -> None:
        """Empty the topic, as retention does."""
        client = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for answer in client.delete_records(
            [TopicPartition(self.topic, number, OFFSET_END) for number in (0, 1)]
        ).values():
            answer.result()

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
