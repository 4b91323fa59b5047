"""A batch with bad rows as work for the batch driver, without Spark: the real letters, in table and topic."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Connection

from jdbc_state.connections import Database
from spark_2pc_sink.clock import SystemClock
from spark_2pc_sink.errors import ConstraintError, DataError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.bad_rows.bad_row import BadRow, BadRows
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from spark_2pc_sink.sink.driver.batch_work import Replay, TransactionTicket
from spark_2pc_sink.sink.records.record_forwarder import Connections, TopicMetadata
from spark_2pc_sink.sink.records.record_side import DeadLetterTopic
from spark_2pc_sink.sink.report import WrittenRows
from spark_2pc_sink.wire.record_batch import combine_digests, format_digest
from tests.harness.driver_config import Row
from tests.harness.driver_rows import RowsWork
from tests.unit.fakes.batch_work import Results

#: How the payload of a row begins that the table refuses.
BAD = "bad"


def is_bad(row: Row) -> bool:
    """Whether the table refuses a row."""
    return row[1].startswith(BAD)


class LettersWork(RowsWork):
    """Rows as `RowsWork`; those that are bad are refused by the table, found by a search, and told in letters.

    Args:
        options: of the sink.
        rows: of the batch.
        half_copied: as of `RowsWork`.
        letters: the dead-letter table.
        topic: the dead-letter topic.
        batch_id: of the batch.
    """

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
        """Every partition of the topic, and those of the letters."""
        return [*super().partitions(), *self._topic.partitions(self._bad, self._batch_id)]

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Connection]) -> Results:
        """Send the rows, and the letters behind them."""
        results = super().produce(ticket, open_decision)
        produced = results.counts
        sent = self._topic.send(ticket, self._bad, self._batch_id)
        counts = replace(
            produced,
            record_count=produced.record_count + sent.sent,
            digest=_with(produced.digest, sent.digest, count=produced.record_count + sent.sent),
            offsets={**produced.offsets, **sent.offsets},
            topic_ids={**produced.topic_ids, **sent.topic_ids},
            letters=sent.count,
            bad_rows=self._bad.occurrences,
        )
        return replace(results, counts=counts)

    def copy_into(self, connection: Connection) -> WrittenRows:
        """COPY the rows, of which the table refuses the bad ones, and write the letters."""
        written = super().copy_into(connection)
        if any(map(is_bad, self._rows)):
            raise ConstraintError(table="target", constraint="good", column="", sqlstate="23514", detail="it is bad")
        if self._bad:
            self._letters.write(connection, self._batch_id, self._bad)
        return written

    def sift(self, ticket: TransactionTicket, error: DataError, open_decision: Callable[[], Connection]) -> bool:
        """The bad rows are known by their payload."""
        del ticket
        assert isinstance(error, ConstraintError)
        open_decision()
        self._leave_out(BadRows(letter_of(row, error.detail) for row in self._rows if is_bad(row)))
        return bool(self._bad)

    def recall(self) -> None:
        """What the table says, and nothing else."""
        self._leave_out(self._letters.read(self._batch_id))

    def reread(self, ticket: TransactionTicket) -> Replay:
        """The digest of records and letters."""
        found, letters = super().reread(ticket), self._topic.encoded(self._bad, self._batch_id)
        count = found.record_count + letters.count
        return Replay(count, _with(found.digest, letters.digest, count=count))

    def _leave_out(self, bad: BadRows) -> None:
        self._bad = bad
        self._rows = [row for row in self._given if identity_of(row) not in bad]


def _with(digest: str, letters: int, *, count: int) -> str:
    return format_digest(combine_digests(int(digest or "0", 16), letters)) if count else ""


def identity_of(row: Row) -> bytes:
    """As good as that of a row of Spark."""
    return hashlib.sha256(json.dumps(row).encode()).digest()[:16]


def letter_of(row: Row, reason: str) -> BadRow:
    """The letter of a row, with its JSON as Spark writes it."""
    shown = json.dumps({"id": row[0], "payload": row[1]}, separators=(",", ":"), ensure_ascii=False)
    return BadRow(identity_of(row), 1, "table target", reason, "23514", row=shown)


#: Makes the work of a batch.
MakeWork = Callable[[int, list[Row], Callable[[], None]], RowsWork]


@contextmanager
def work_of(options: SinkOptions, database: Database, query_id: str) -> Iterator[MakeWork]:
    """What makes the work of batches: with letters where the sink has a topic for them.

    Args:
        options: of the sink.
        database: for the dead-letter table.
        query_id: of the query.
    """
    if options.dead_letter_topic is None:
        yield lambda _, rows, half_copied: RowsWork(options, rows, half_copied)
        return
    connections = Connections(options.kafka)
    with Cluster(options.kafka) as cluster:
        letters = DeadLetters(options, database, query_id)
        letters.prepare()
        topic = DeadLetterTopic(options, query_id, TopicMetadata(cluster, SystemClock()), connections)
        topic.check()
        yield lambda batch, rows, half_copied: LettersWork(
            options, rows, half_copied, letters=letters, topic=topic, batch_id=batch
        )
        connections.drop()
