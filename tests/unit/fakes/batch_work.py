"""The batch work of tests: three rows that arrive in the fake Kafka and in no table, and fail at will."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_2pc_sink.errors import DataError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.sink.driver.batch_values import ProducedBatch, Replay, TransactionTicket
from spark_2pc_sink.sink.report import WrittenRows
from tests.unit.fakes.fake_kafka import PARTITION, FakeKafka


@dataclass
class Results:
    """`BatchResults` of work that does the rest itself."""

    counts: ProducedBatch
    copy_into: Callable[[Any], WrittenRows]
    close: Callable[[], None] = lambda: None


@dataclass
class FakeWork:
    """Three rows; can fail at will."""

    kafka: FakeKafka
    rows: int = 3
    records: int = 3
    copied: int = 3
    left_out: int = 0
    digest: str = "d" * 32
    fail: list[Exception] = field(default_factory=list)
    fail_copy: list[Exception] = field(default_factory=list)
    early: tuple[str, ...] = ()
    log: list[str] = field(default_factory=list)
    tickets: list[TransactionTicket] = field(default_factory=list)
    searches: list[int | Exception] = field(default_factory=list)
    bad_rows: int = 0
    dead_letters: int = 0

    def partitions(self) -> list[TopicPartition]:
        return [PARTITION]

    def produce(self, ticket: TransactionTicket, open_decision: Callable[[], Any]) -> Results:
        self.log.append("produce")
        for statement in self.early:
            open_decision().execute(statement)
        self.tickets.append(ticket)
        if self.records:
            self.kafka.produce(ticket.producer)
        if self.fail:
            raise self.fail.pop(0)
        digest = self.digest if self.records else ""
        counts = ProducedBatch(
            self.rows,
            self.records,
            digest,
            {PARTITION: (0, 2)},
            expected_records=self.rows - self.left_out,
            topic_ids=dict(self.kafka.topic_ids),
            record_bytes=100 * self.records,
            left_out=self.left_out,
            bad_rows=self.bad_rows,
        )
        return Results(counts, self._copy_into, lambda: self.log.append("close"))

    def _copy_into(self, connection: Any) -> WrittenRows:
        self.log.append("copy")
        connection.execute("copy")
        if self.fail_copy:
            raise self.fail_copy.pop(0)
        return WrittenRows(given=self.copied, written=self.copied)

    def reread(self) -> Replay:
        self.log.append("reread")
        return Replay(self.records, self.digest if self.records else "")

    def search(self, error: DataError, open_decision: Callable[[], Any]) -> bool:
        assert error is not None
        self.log.append("search")
        open_decision().execute("search")
        found = self.searches.pop(0) if self.searches else 0
        if isinstance(found, Exception):
            raise found
        self.bad_rows += found
        return found > 0

    def recall(self) -> None:
        self.log.append("recall")
        self.bad_rows = self.dead_letters
