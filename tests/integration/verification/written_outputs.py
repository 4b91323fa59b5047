"""A sink with several outputs as its batches leave it, written without Spark: records by librdkafka, rows by SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from jdbc_state import Decision, SqlStateStore
from spark_2pc_sink import Records, Rows, VerifyReport
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.outputs import lanes_of
from spark_2pc_sink.verification.record_digest import MODULUS, content_of, digest_text, record_hash
from spark_2pc_sink.verification.topic_reader import TopicReader
from tests.integration.verification.written_sides import DEADLINE_S, Sides

Outputs: TypeAlias = Sequence[Records | Rows]
#: By topic the key and the value of each record; a value that is no text goes out as its JSON.
Sent: TypeAlias = Mapping[str, Sequence[tuple[str | None, Any]]]


@dataclass
class WrittenOutputs:
    """One sink.

    Args:
        sides: its servers and its id.
        writes: its outputs.
        dead_letters: topic and table of its dead letters; None where they go to no topic.
    """

    sides: Sides
    writes: Outputs
    dead_letters: tuple[str, str] | None = None

    def start(self, writes: Outputs | None = None) -> None:
        """A start of the job, perhaps with other outputs: a claim with its layout."""
        self.writes = self.writes if writes is None else writes
        with closing(SqlStateStore(self.sides.database)) as store:
            store.prepare_schema()
            self._claim(store)

    def write(
        self, sent: Sent, *statements: str, rows: Mapping[str, int] | None = None, committed: bool = True
    ) -> None:
        """One batch: its records in one transaction, its rows with the decision, and the end of the transaction.

        Args:
            sent: the records.
            statements: write the rows.
            rows: how many of them each table gets, for the history; None where it does not tell.
            committed: False where Kafka is not told, and the transaction stays open.
        """
        sides, rows = self.sides, rows or {}
        if not sides.generation:
            self.start()
        offsets, digest, topics = self._send(sent, committed=committed)
        reader = TopicReader(KafkaOptions.parse({"bootstrap.servers": sides.broker.bootstrap}))
        figures = {"outputs": {f"Rows({table!r})": count for table, count in rows.items()}}
        with closing(SqlStateStore(sides.database)) as store:
            store.prepare_schema()
            row = store.read(sides.transactional_id)
            assert row is not None
            with store.deciding(sides.transactional_id, row.generation) as transaction:
                for statement in statements:
                    transaction.connection.exec_driver_sql(statement)
                decision = Decision(
                    prepared=f"7:{sides.batches}",
                    expected=row.prepared_transaction_state,
                    batch_id=sides.batches,
                    row_count=sum(rows.values()),
                    record_count=sum(map(len, sent.values())),
                    digest=digest,
                    kafka_offsets=offsets,
                    topic_ids=reader.describe(topics).topic_ids if topics else {},
                    figures=figures,
                )
                transaction.decide(decision)
            if decision.record_count and committed:
                store.mark_done(sides.transactional_id, row.generation, f"7:{sides.batches}")
        sides.batches += 1

    def verify(self, **options: Any) -> VerifyReport:
        """What verify says of all that the sink has noted."""
        return self.sides.verify(**{"table": None, **options})

    def _claim(self, store: SqlStateStore) -> None:
        sides = self.sides
        cluster = TopicReader(KafkaOptions.parse({"bootstrap.servers": sides.broker.bootstrap})).cluster_id()
        layout = SinkLayout.of(lanes_of(self.writes), dead_letters=self.dead_letters).as_json()
        row = store.claim(
            transactional_id=sides.transactional_id, cluster_id=cluster, query_id="query", run_id="run", layout=layout
        )
        sides.generation = row.generation

    def _send(self, sent: Sent, *, committed: bool) -> tuple[dict[str, tuple[int, int]], str, list[str]]:
        digest, places = 0, []
        producer = self.sides._producer(self.sides.transactional_id)
        producer.begin_transaction()
        for topic, records in sent.items():
            for key, value in records:
                content = (
                    value.encode() if isinstance(value, str) else None if value is None else json.dumps(value).encode()
                )
                producer.produce(
                    topic, content, key, on_delivery=lambda error, message: places.append((error, message))
                )
                digest += record_hash(topic, content_of(None if key is None else key.encode(), content, ()))
        assert producer.flush(DEADLINE_S) == 0
        offsets: dict[str, tuple[int, int]] = {}
        for error, message in places:
            assert error is None
            name, at = f"{message.topic()}-{message.partition()}", message.offset() or 0
            first, last = offsets.get(name, (at, at))
            offsets[name] = (min(first, at), max(last, at))
        if committed:
            producer.commit_transaction(DEADLINE_S)
        else:
            self.sides.open_producers.append(producer)
        return offsets, digest_text(digest % MODULUS) if places else "", [topic for topic in sent if sent[topic]]
