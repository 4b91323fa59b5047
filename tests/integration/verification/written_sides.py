"""Both sides of a sink as batches leave them, written without Spark: records by librdkafka, rows by SQL.

So a test decides what each side has, to the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from confluent_kafka import Message, Producer

from jdbc_state import Decision, SqlStateStore
from spark_2pc_sink import Records, Rows, VerifyReport, verify
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.outputs import lanes_of
from spark_2pc_sink.verification.history import MODULUS, content_of, digest_of, digest_text
from spark_2pc_sink.verification.topic_reader import TopicReader
from tests.harness.providers import Broker
from tests.harness.sql import run_sql

DEADLINE_S = 30
Outputs: TypeAlias = Sequence[Records | Rows]
#: By topic the key and the value of each record; a value that is neither text nor bytes goes out as its JSON.
Sent: TypeAlias = Mapping[str, Iterable[tuple[str | None, Any]]]
#: How far a batch came: the row says so too, or Kafka alone has committed, or aborted, or neither.
End: TypeAlias = Literal["done", "committed", "aborted", "open"]


@dataclass
class Sides:
    """One sink; ``table`` is made by the test."""

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
        return run_sql(self.database, statement, *values)

    def claim(self, layout: Mapping[str, Any] | None) -> None:
        """A start of the job, which notes this of the sink."""
        with closing(SqlStateStore(self.database)) as store:
            store.prepare_schema()
            name, cluster = self.transactional_id, self._reader().cluster_id()
            row = store.claim(transactional_id=name, cluster_id=cluster, query_id="query", run_id="run", layout=layout)
            self.generation = row.generation

    def send(self, *records: tuple[str | None, Any], transactional_id: str) -> None:
        """Send records in one transaction of another producer, and commit it."""
        producer = self._producer(transactional_id)
        self._produce(producer, {self.topic: records})
        producer.commit_transaction(DEADLINE_S)

    def write(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        statement: str = "INSERT INTO target SELECT * FROM json_populate_record(NULL::target, %s)",
        values: Sequence[bytes] | None = None,
        layout: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> None:
        """A claim that notes the layout, and one batch of rows, whose field ``id`` is the key of the record.

        The values of the records are by default the rows; for ``how`` see `batch`.
        """
        self.claim(layout)
        keys = [str(row["id"]) if "id" in row else None for row in rows]
        sent = {self.topic: list(zip(keys, rows if values is None else values, strict=True))}
        self.batch(sent, [(statement, (json.dumps(row),)) for row in rows], row_count=len(rows), **how)

    def batch(
        self,
        sent: Sent,
        statements: Iterable[tuple[Any, ...]],
        *,
        row_count: int,
        outputs: Mapping[str, int] | None = None,
        end: End = "done",
        between: Callable[[], object] | None = None,
        count: int | None = None,
    ) -> None:
        """One batch in the sink's order: its records, its rows with the decision, and the end of the transaction.

        Args:
            outputs: how many rows each output has, for the history.
            between: called when the first record is in the log and the others are not.
            count: as the number of records in the history, where that is to be wrong.
        """
        name, prepared = self.transactional_id, f"7:{self.batches}"
        producer = self._producer(name)
        offsets, records, digest = self._produce(producer, sent, between=between)
        topics = {place.rpartition("-")[0] for place in offsets}
        with closing(SqlStateStore(self.database)) as store:
            # Without it the store does not know that the history has figures.
            store.prepare_schema()
            row = store.read(name)
            assert row is not None
            decision = Decision(
                prepared=prepared,
                expected=row.prepared_transaction_state,
                batch_id=self.batches,
                row_count=row_count,
                record_count=records if count is None else count,
                digest=digest,
                kafka_offsets=offsets,
                topic_ids=self._reader().describe(topics).topic_ids,
                figures={"outputs": outputs or {}},
            )
            with store.deciding(name, row.generation) as transaction:
                for statement in statements:
                    transaction.connection.exec_driver_sql(*statement)
                transaction.decide(decision)
            self.batches += 1
            self.batch_offsets.append(offsets)
            if end == "open":
                # A producer that is gone would try to end its transaction.
                self.open_producers.append(producer)
            elif end == "aborted":
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
            if end == "done" and records:
                store.mark_done(name, row.generation, prepared)

    def verify(self, **options: Any) -> VerifyReport:
        """What verify says; of this table unless another is named."""
        sides = {"kafka": {"bootstrap.servers": self.broker.bootstrap}, "database": self.database}
        told = {"transactional_id": self.transactional_id, "table": self.table, "wait_ms": 2_000}
        return verify(**{**sides, **told, **options})

    def _reader(self) -> TopicReader:
        return TopicReader(KafkaOptions.parse({"bootstrap.servers": self.broker.bootstrap}))

    def _producer(self, transactional_id: str) -> Producer:
        settings = {"bootstrap.servers": self.broker.bootstrap, "transactional.id": transactional_id, "linger.ms": 5}
        producer = Producer(settings)
        producer.init_transactions(DEADLINE_S)
        return producer

    def _produce(
        self, producer: Producer, sent: Sent, *, between: Callable[[], object] | None = None
    ) -> tuple[dict[str, tuple[int, int]], int, str]:
        """Send records in a transaction that is left open: their offsets, their number, and their digest."""
        places: list[tuple[str, int]] = []

        def note(error: object, message: Message) -> None:
            assert error is None, error
            places.append((f"{message.topic()}-{message.partition()}", message.offset() or 0))

        producer.begin_transaction()
        digest = 0
        for topic, key, value in [(topic, *record) for topic, records in sent.items() for record in records]:
            content = _bytes(value)
            producer.produce(topic, value=content, key=key, on_delivery=note)
            digest += digest_of(topic, [content_of(_bytes(key), content, ())])
            if between is not None and not places:
                assert producer.flush(DEADLINE_S) == 0
                between()
        assert producer.flush(DEADLINE_S) == 0
        offsets: dict[str, tuple[int, int]] = {}
        for name, offset in places:
            first, last = offsets.get(name, (offset, offset))
            offsets[name] = (min(first, offset), max(last, offset))
        return offsets, len(places), digest_text(digest % MODULUS) if places else ""


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


@dataclass
class WrittenOutputs:
    """A sink with several outputs, and perhaps with topic and table of dead letters."""

    sides: Sides
    writes: Outputs
    dead_letters: tuple[str, str] | None = None

    def start(self, writes: Outputs | None = None) -> None:
        """A start of the job, perhaps with other outputs: a claim with its layout."""
        self.writes = self.writes if writes is None else writes
        self.sides.claim(SinkLayout.of(lanes_of(self.writes), dead_letters=self.dead_letters).as_json())

    def write(
        self, sent: Sent, *statements: str, rows: Mapping[str, int] | None = None, committed: bool = True
    ) -> None:
        """One batch; ``rows`` has how many of them each table gets, where the history tells."""
        if not self.sides.generation:
            self.start()
        outputs = {f"Rows({table!r})": count for table, count in (rows or {}).items()}
        made, end = [(statement,) for statement in statements], "done" if committed else "open"
        self.sides.batch(sent, made, row_count=sum(outputs.values()), outputs=outputs, end=end)  # type: ignore[arg-type]

    def verify(self, **options: Any) -> VerifyReport:
        return self.sides.verify(**{"table": None, **options})


def rows(first: int, count: int) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"id": number, "name": f'n{number} äö€ \\ "q"', "amount": number / 4} for number in numbers]
