"""Sinks without Spark for the tests of `status`: state rows and transactions as drivers would leave them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa

from jdbc_state import SqlStateStore, StateRow
from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.ids import PreparedTxnState, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.batch_sender import ProducedTransaction
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from tests.harness.providers import Broker
from tests.integration.state.state_stores import FIRST, claim, execute, row_of, sql_store

#: Between what tells the sinks of one test from those of others on the same broker, and the name in the test.
SEPARATOR: Final = "."


class Sinks:
    """Makes sinks on one broker and in one database; the topic's name is before that of each sink."""

    def __init__(self, broker: Broker, database: str, topic: str, stack: ExitStack) -> None:
        self.broker = broker
        self.database = database
        self._topic = topic
        self._stack = stack
        self._options = KafkaOptions.parse({"bootstrap.servers": broker.bootstrap})
        self._cluster = stack.enter_context(Cluster(self._options))
        self._partition = TopicPartition(topic, 0)
        self._here = self._cluster.features().cluster_id
        self._store = self._opened()

    def id_of(self, name: str) -> str:
        """The transactional id of a sink."""
        return f"{self._topic}{SEPARATOR}{name}"

    def claimed(
        self, name: str, *, cluster_id: str | None = None, lives: bool = False
    ) -> tuple[StateRow, TransactionClient]:
        """A sink whose driver has claimed its row, and taken a pair; one that ``lives`` goes on for the whole test."""
        store = self._opened() if lives else self._store
        name = self.id_of(name)
        row = claim(store, name, cluster_id=cluster_id or self._here)
        if not lives:
            store._presence.end()
        client = TransactionClient(self._cluster, name, self._options)
        return store.mark_initialized(name, row.generation, str(self.pair(client))), client

    def open(self, name: str, *, lives: bool = False) -> StateRow:
        """A sink in mid-batch: its transaction is open, and nothing is decided."""
        row, client = self.claimed(name, lives=lives)
        self._send(client.transactional_id, self.pair(client))
        return row

    def decided(self, name: str, *, cluster_id: str | None = None) -> StateRow:
        """A sink whose driver was killed behind its decision: Kafka has the transaction open."""
        row, client = self.claimed(name, cluster_id=cluster_id)
        pair = self.pair(client)
        written = self._send(client.transactional_id, pair)
        batch = replace(FIRST, prepared=str(pair), kafka_offsets=written, topic_ids={})
        with self._store.deciding(row.transactional_id, row.generation) as transaction:
            transaction.decide(batch)
        return row

    def ended(self, name: str, *, commit: bool) -> None:
        """A sink whose decided transaction has ended, and whose driver has noted it: done, or owed."""
        row = self.decided(name)
        name = row.transactional_id
        pair = PreparedTxnState(row_of(self._store, name).prepared_transaction_state).producer
        assert pair is not None
        answer = TransactionClient(self._cluster, name, self._options).end(pair, commit=commit)
        if commit:
            self._store.mark_done(name, row.generation, str(answer.producer or pair))
        else:
            self._store.mark_owed(name, row.generation)

    def pair(self, client: TransactionClient) -> ProducerIdAndEpoch:
        """A pair to begin a transaction with."""
        return client.usable_producer().producer

    def sql(self, statement: str, **parameters: object) -> None:
        """One statement in the database."""
        execute(self.database, statement, **parameters)

    def _send(self, transactional_id: str, pair: ProducerIdAndEpoch) -> dict[str, tuple[int, int]]:
        """Three records of a transaction; where they are."""
        session = ProduceSession(
            self._cluster,
            ProducedTransaction(transactional_id, pair, self._cluster.features().transaction_version),
            self._options,
            timestamp_ms=now_ms(),
        )
        values = pa.array([b"a", b"b", b"c"], pa.binary())
        with closing(session):
            session.append(self._partition, EncodedRows.of(values, values, None))
            written = session.flush()
        return {str(where): (receipt.first_offset, receipt.last_offset) for where, receipt in written.items()}

    def _opened(self) -> SqlStateStore:
        return self._stack.enter_context(sql_store(self.database))


@contextmanager
def sinks_on(broker: Broker, database: str, topic: str) -> Iterator[Sinks]:
    """A maker of sinks, closed at the end."""
    with ExitStack() as stack:
        yield Sinks(broker, database, topic, stack)
