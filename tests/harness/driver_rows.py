"""A batch of rows as work for the batch driver, without Spark: real records, real COPY, one process."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection

from jdbc_state.connections import Database, driver_connection
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.errors import ConstraintError, DataError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.kafka.record_encoder import EncodingOptions, RecordEncoder, TopicLimits
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.bad_rows.bad_row import BadRow, BadRows
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.driver.batch_values import ProducedBatch, Replay, TransactionTicket
from spark_2pc_sink.sink.records.record_side import DeadLetterTopic, ForwarderConnections, TopicMetadata
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.wire.arrow_layout import EncodedRows
from spark_2pc_sink.wire.record_batch import combine_digests, format_digest
from tests.harness.driver_config import Row
from tests.unit.fakes.batch_work import Results

#: So many of the rows are written while others are still sent, in a COPY of their own.
EARLY_SHARE = 4
#: COPY is given its rows in this many pieces; `half_copied` is called after the first of the last COPY.
COPY_PIECES = 2


class RowsWork:
    """Rows (id, payload) that go to the topic as key and value, and into a table of these two columns.

    Args:
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
        with self.cluster() as cluster:
            return self._partitions(cluster)

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> Results:
        """Send the rows over connections of their own, as a task does, and write the first of them meanwhile."""
        kafka = self._options.kafka
        with (
            self.cluster() as cluster,
            closing(ProduceSession(cluster, ticket, kafka, timestamp_ms=time.time_ns() // 1_000_000)) as session,
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
                expected_records=len(self._rows),
                topic_ids=topic_ids,
            )
        return Results(counts, self.copy_into)

    def copy_into(self, connection: Connection) -> WrittenRows:
        rows = len(self._early()) + self._copy(connection, self._pieces())
        return WrittenRows(given=rows, written=rows)

    def reread(self) -> Replay:
        options = EncodingOptions.of(self._options.kafka)
        encoder = RecordEncoder(options, timestamp_ms=0, limits=lambda _: TopicLimits(None, None))
        with self.cluster() as cluster:
            encoded = [batch for partition, rows in self._records(cluster) for batch in encoder.append(partition, rows)]
        digest = combine_digests(*(batch.digest for batch in (*encoded, *encoder.finish())))
        return Replay(len(self._rows), format_digest(digest) if self._rows else "")

    def search(self, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        del error, open_decision
        return False

    def recall(self) -> None: ...

    def value(self, row: Row) -> str:
        """The value of a row's record: the payload; another kind of work may have another."""
        return row[1]

    def _records(self, cluster: Cluster) -> Iterator[tuple[TopicPartition, EncodedRows]]:
        partitions = self._partitions(cluster)
        for number, partition in enumerate(partitions):
            rows = [row for row in self._rows if row[0] % len(partitions) == number]
            keys, values = _binary(str(row[0]) for row in rows), _binary(self.value(row) for row in rows)
            yield partition, EncodedRows.of(keys, values, None)

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


#: How the payload of a row begins that the table refuses.
BAD = "bad"


def is_bad(row: Row) -> bool:
    return row[1].startswith(BAD)


class LettersWork(RowsWork):
    """Rows as `RowsWork`; those that are bad are refused by the table, found by a search, and told in letters."""

    def __init__(
        self,
        options: SinkOptions,
        rows: list[Row],
        half_copied: Callable[[], None],
        *,
        letters: DeadLetters,
        topic: DeadLetterTopic,
        batch_id: int,
    ) -> None:
        super().__init__(options, rows, half_copied)
        self._given = rows
        self._letters = letters
        self._topic = topic
        self._batch_id = batch_id
        self._bad = BadRows()

    def partitions(self) -> list[TopicPartition]:
        return [*super().partitions(), *self._topic.partitions(self._bad, self._batch_id)]

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> Results:
        """Send the rows, and the letters behind them."""
        results = super().produce(ticket, open_decision)
        produced = results.counts
        letters = self._topic.send(ticket, self._bad, self._batch_id)
        record_count = produced.record_count + letters.sent.records
        counts = replace(
            produced,
            record_count=record_count,
            digest=_with(produced.digest, letters.digest, count=record_count),
            offsets={**produced.offsets, **letters.sent.offsets},
            topic_ids={**produced.topic_ids, **letters.sent.topic_ids},
            expected_records=produced.expected_records + letters.count,
            bad_rows=self._bad.occurrences,
        )
        return replace(results, counts=counts)

    def copy_into(self, connection: Connection) -> WrittenRows:
        written = super().copy_into(connection)
        if any(map(is_bad, self._rows)):
            raise ConstraintError(table="target", constraint="good", column="", sqlstate="23514", detail="it is bad")
        if self._bad:
            self._letters.write(connection, self._batch_id, self._bad)
        return written

    def search(self, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        assert isinstance(error, ConstraintError)
        open_decision()
        self._leave_out(BadRows(letter_of(row, error.detail) for row in self._rows if is_bad(row)))
        return bool(self._bad)

    def recall(self) -> None:
        self._leave_out(self._letters.read(self._batch_id))

    def reread(self) -> Replay:
        found, letters = super().reread(), self._topic.encoded(self._bad, self._batch_id)
        count = found.record_count + letters.count
        return Replay(count, _with(found.digest, letters.digest, count=count))

    def _leave_out(self, bad: BadRows) -> None:
        self._bad = bad
        self._rows = [row for row in self._given if identity_of(row) not in bad]


def _with(digest: str, letters: int, *, count: int) -> str:
    return format_digest(combine_digests(int(digest or "0", 16), letters)) if count else ""


def identity_of(row: Row) -> str:
    """As good as that of a row of Spark."""
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()[:32]


def letter_of(row: Row, reason: str) -> BadRow:
    """The letter of a row, with its JSON as Spark writes it."""
    shown = json.dumps({"id": row[0], "payload": row[1]}, separators=(",", ":"), ensure_ascii=False)
    return BadRow(identity_of(row), 1, "table target", reason, "23514", row=shown)


#: Makes the work of a batch.
MakeWork = Callable[[int, list[Row], Callable[[], None]], RowsWork]


@contextmanager
def work_of(options: SinkOptions, database: Database, query_id: str) -> Iterator[MakeWork]:
    """What makes the work of batches: with letters where the sink has a topic for them."""
    if options.dead_letter_topic is None:
        yield lambda _, rows, half_copied: RowsWork(options, rows, half_copied)
        return
    connections = ForwarderConnections(options.kafka)
    with Cluster(options.kafka) as cluster:
        letters = DeadLetters(options, database, query_id)
        letters.prepare()
        topic = DeadLetterTopic(options, query_id, TopicMetadata(cluster, SystemClock()), connections)
        topic.check()
        yield lambda batch, rows, half_copied: LettersWork(
            options, rows, half_copied, letters=letters, topic=topic, batch_id=batch
        )
        connections.drop()
