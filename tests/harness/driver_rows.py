"""A batch of rows as work for the batch driver, without Spark: real records, real COPY, one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from jdbc_state.connections import driver_connection
from spark_2pc_sink.errors import DataError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.kafka.record_encoder import EncodingOptions, RecordEncoder, TopicLimits
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.driver.batch_work import ProducedBatch, Replay, TransactionTicket
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.wire.record_batch import combine_digests, format_digest
from spark_2pc_sink.wire.record_rows import Rows
from tests.harness.driver_config import Row
from tests.unit.fakes.batch_work import Results

#: So many of the rows are written while others are still sent, in a COPY of their own.
EARLY_SHARE = 4
#: COPY is given its rows in this many pieces; `half_copied` is called after the first of the last COPY.
COPY_PIECES = 2


class RowsWork:
    """Rows (id, payload) that go to the topic as key and value, and into a table of these two columns.

    Args:
        options: of the sink.
        rows: of the batch; a payload has no tab, backslash or line break.
        half_copied: called inside the last COPY, with a part of the rows sent.
    """

    def __init__(self, options: SinkOptions, rows: list[Row], half_copied: Callable[[], None]) -> None:
        self._options = options
        self._rows = rows
        self._half_copied = half_copied

    def cluster(self) -> AbstractContextManager[Cluster]:
        """Connections of their own, as a task has them; work for many batches may keep some."""
        return Cluster(self._options.kafka)

    def partitions(self) -> list[TopicPartition]:
        """Every partition of the topic."""
        with self.cluster() as cluster:
            return self._partitions(cluster)

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> Results:
        """Send the rows over connections of their own, as a task does, and write the first of them meanwhile."""
        kafka = self._options.kafka
        with (
            self.cluster() as cluster,
            closing(
                ProduceSession(
                    cluster,
                    ticket.open_transaction,
                    kafka,
                    timestamp_ms=time.time_ns() // 1_000_000,
                )
            ) as session,
        ):
            for partition, rows in self._records(cluster):
                session.append(partition, rows)
            topic_ids = {topic: cluster.topic_id(topic) for topic in (self._options.topics[0],)}
            if not ticket.kafka_only:
                self._copy(open_decision(), iter([_lines(self._early())]))
            receipts = session.flush()
            acknowledged = sum(receipt.records for receipt in receipts.values())
            counts = ProducedBatch(
                row_count=len(self._rows),
                record_count=acknowledged,
                digest=format_digest(session.digest) if acknowledged else "",
                offsets={at: (receipt.first_offset, receipt.last_offset) for at, receipt in receipts.items()},
                topic_ids=topic_ids,
            )
        return Results(counts, self.copy_into)

    def copy_into(self, connection: Connection) -> WrittenRows:
        """COPY the rows into the table."""
        rows = len(self._early()) + self._copy(connection, self._pieces())
        return WrittenRows(given=rows, written=rows)

    def reread(self, ticket: TransactionTicket) -> Replay:
        """The digest of the records."""
        del ticket  # of no transaction
        options = EncodingOptions.of(self._options.kafka)
        encoder = RecordEncoder(options, timestamp_ms=0, limits=lambda _: TopicLimits(None, None))
        with self.cluster() as cluster:
            encoded = [batch for partition, rows in self._records(cluster) for batch in encoder.append(partition, rows)]
        digest = combine_digests(*(batch.digest for batch in (*encoded, *encoder.finish())))
        return Replay(len(self._rows), format_digest(digest) if self._rows else "")

    def sift(self, ticket: TransactionTicket, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        """Every row is meant to be taken."""
        del ticket, error, open_decision
        return False

    def recall(self) -> None:
        """No row was ever left out."""

    def value(self, row: Row) -> str:
        """The value of a row's record: the payload; another kind of work may have another."""
        return row[1]

    def _records(self, cluster: Cluster) -> Iterator[tuple[TopicPartition, Rows]]:
        partitions = self._partitions(cluster)
        for number, partition in enumerate(partitions):
            rows = [row for row in self._rows if row[0] % len(partitions) == number]
            keys, values = _binary(str(row[0]) for row in rows), _binary(self.value(row) for row in rows)
            yield partition, Rows.of(keys, values, None)

    def _partitions(self, cluster: Cluster) -> list[TopicPartition]:
        topic = self._options.topics[0]
        return [TopicPartition(topic, number) for number in range(cluster.partition_counts([topic])[topic])]

    def _copy(self, connection: Connection, pieces: Iterator[bytes]) -> int:
        with driver_connection(connection).cursor() as cursor:
            cursor.copy_expert(f"COPY {self._options.given()['table']} (id, payload) FROM STDIN", _Pieces(pieces))
            written: int = cursor.rowcount
        return written

    def _early(self) -> list[Row]:
        return self._rows[: len(self._rows) // EARLY_SHARE]

    def _pieces(self) -> Iterator[bytes]:
        late = self._rows[len(self._early()) :]
        length = -(-len(late) // COPY_PIECES)
        for piece in range(COPY_PIECES):
            yield _lines(late[piece * length : (piece + 1) * length])
            if piece == 0:
                self._half_copied()


class _Pieces:
    """What ``copy_expert`` reads."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int) -> bytes:
        """The next piece; psycopg2 takes what it is given, whatever size it would like."""
        del size
        return next(self._pieces, b"")


def _lines(rows: list[Row]) -> bytes:
    return "".join(f"{number}\t{payload}\n" for number, payload in rows).encode()


def _binary(values: Iterator[str]) -> Any:
    return pa.array([value.encode() for value in values], pa.binary())
