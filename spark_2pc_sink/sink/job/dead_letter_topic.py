"""The dead-letter topic: it gets what the dead-letter table has, in the Kafka transaction of the batch.

The driver sends the letters, when the tasks have sent all else and before anything is decided. No task writes to this
topic, so nobody else gives sequence numbers in its partitions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.producer.batch_sender import REQUEST_BYTES
from spark_2pc_sink.producer.produce_session import ProduceSession
from spark_2pc_sink.producer.record_encoder import EncodedBatch, records_bytes_max
from spark_2pc_sink.sink.bad_rows.dead_letter_records import (
    LETTER_BYTES_MAX,
    MESSAGE_BYTES_MIN,
    MESSAGE_BYTES_WANTED,
    LetterBatch,
    letter_records,
    too_small,
)
from spark_2pc_sink.sink.transfer.record_forwarder import name_fault
from spark_2pc_sink.wire.digest import EMPTY_DIGEST, combine_digests
from spark_2pc_sink.wire.record_list import cut_contents, encode_listed_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_2pc_sink.options import SinkOptions
    from spark_2pc_sink.sink.bad_rows.bad_row import BadRows
    from spark_2pc_sink.sink.contract.batch_work import TransactionTicket
    from spark_2pc_sink.sink.job.topic_metadata import TopicMetadata
    from spark_2pc_sink.sink.transfer.record_forwarder import Connections


@dataclass(frozen=True, kw_only=True)
class Letters:
    """The dead letters of a batch, as records.

    Attributes:
        count: how many they are.
        digest: 128-bit digest over them.
        batches: the record batches, those of one partition in their order.
        sent: how many Kafka has acknowledged.
        offsets: of those the first and the last in each partition.
        topic_ids: of the topic; empty where a broker has no topic ids, or nothing was sent.
        record_bytes: of the record batches that were sent, compressed.
    """

    count: int = 0
    digest: int = EMPTY_DIGEST
    batches: tuple[EncodedBatch, ...] = ()
    sent: int = 0
    offsets: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    record_bytes: int = 0


NO_LETTERS: Final = Letters()


class DeadLetterTopic:
    """The topic, as one run of a query sees it; a sink without one sends no letters.

    Args:
        options: of the sink.
        query_id: whose batches are meant.
        topics: asks Kafka about topics.
        connections: by which letters are sent.
    """

    def __init__(self, options: SinkOptions, query_id: str, topics: TopicMetadata, connections: Connections) -> None:
        self._options = options
        self._query_id = query_id
        self._topics = topics
        self._connections = connections

    @property
    def name(self) -> str | None:
        """Of the topic; None where the sink has none."""
        return self._options.dead_letter_topic

    def __str__(self) -> str:
        """As a report names it among the outputs."""
        return f"DeadLetters({self.name!r})"

    def check(self) -> None:
        """See that the topic can take letters. Before the first batch.

        Raises:
            UnknownTopicError: it does not exist.
            ConfigurationError: it is one of Kafka's own, or takes too small records.
        """
        if self.name is None:
            return
        fault = name_fault(self.name)
        if fault is not None:
            raise self._refused(fault, "name a topic of your own")
        self._topics.counts([self.name])
        allowed = self._topics.limits(self.name).message_bytes_max
        if allowed is not None and (rule := too_small(allowed)):
            raise self._refused(rule, f"set max.message.bytes={MESSAGE_BYTES_WANTED} or more on the topic")
        if self._options.kafka.max_request_bytes < MESSAGE_BYTES_MIN + REQUEST_BYTES:
            rule = f"max.request.size is {self._options.kafka.max_request_bytes}, and a letter may need more"
            raise self._refused(rule, f"raise it to {MESSAGE_BYTES_MIN + REQUEST_BYTES} or more")

    def partitions(self, bad_rows: BadRows, batch_id: int) -> list[TopicPartition]:
        """Those that the letters of a batch go to."""
        if self.name is None or not bad_rows:
            return []
        return list(self._contents(self.name, bad_rows, batch_id))

    def encoded(self, bad_rows: BadRows, batch_id: int) -> Letters:
        """The letters of a batch, and nothing sent.

        Args:
            bad_rows: what was left out of it.
            batch_id: Spark's id of it.
        """
        if self.name is None or not bad_rows:
            return NO_LETTERS
        batches = [
            self._batch(partition, part)
            for partition, contents in self._contents(self.name, bad_rows, batch_id).items()
            for part in cut_contents(contents, min(self._options.kafka.batch_bytes_max, self._bytes_max(self.name)))
        ]
        digest = combine_digests(*(batch.digest for batch in batches))
        return Letters(count=len(bad_rows), digest=digest, batches=tuple(batches))

    def send(self, ticket: TransactionTicket, bad_rows: BadRows, batch_id: int) -> Letters:
        """Send the letters of a batch, and wait until each is acknowledged.

        Args:
            ticket: of the Kafka transaction, to whose partitions those of `partitions` were added where it needs that.
            bad_rows: what was left out of the batch.
            batch_id: Spark's id of it.

        Raises:
            As `ProduceSession.append`.
        """
        letters = self.encoded(bad_rows, batch_id)
        if self.name is None or not letters.batches:
            return letters
        try:
            session = self._session(ticket, self.name)
            session.meet(batch.partition for batch in letters.batches)
            for batch in letters.batches:
                session.append_encoded(batch)
            written = session.flush()
        except BaseException:
            self._connections.drop()
            raise
        topic_id = self._topics.id_of(self.name)
        return replace(
            letters,
            sent=sum(receipt.records for receipt in written.values()),
            offsets={at: (receipt.first_offset, receipt.last_offset) for at, receipt in written.items()},
            topic_ids={self.name: topic_id} if topic_id else {},
            record_bytes=session.record_bytes,
        )

    def _contents(self, topic: str, bad_rows: BadRows, batch_id: int) -> dict[TopicPartition, list[bytes]]:
        """The contents of the letters' records, by partition."""
        options = self._options
        about = LetterBatch(
            transactional_id=options.transactional_id,
            query_id=self._query_id,
            batch_id=batch_id,
            table=str(options.dead_letter_name),
        )
        count, bytes_max = self._topics.counts([topic])[topic], self._bytes_max(topic)
        contents: dict[TopicPartition, list[bytes]] = defaultdict(list)
        for record in letter_records(bad_rows.values(), about, partition_count=count, bytes_max=bytes_max):
            contents[TopicPartition(topic, record.partition)].append(record.content)
        return contents

    def _session(self, ticket: TransactionTicket, topic: str) -> ProduceSession:
        return ProduceSession(
            self._connections.cluster(),
            transactional_id=ticket.transactional_id,
            producer=ticket.producer,
            transaction_version=ticket.transaction_version,
            options=self._options.kafka,
            timestamp_ms=now_ms(),
            limits={topic: self._topics.limits(topic)},
        )

    def _batch(self, partition: TopicPartition, contents: list[bytes]) -> EncodedBatch:
        kafka = self._options.kafka
        made = encode_listed_batch(
            partition.topic,
            contents,
            timestamp_ms=now_ms(),
            compression=kafka.compression,
            level=kafka.compression_level,
        )
        return EncodedBatch(partition, made.payload, made.record_count, made.digest, row_key=None)

    def _bytes_max(self, topic: str) -> int:
        """Bytes of one letter: the same for each replay, as long as nobody changes the topic."""
        allowed = self._topics.limits(topic).message_bytes_max
        bounds = [LETTER_BYTES_MAX, self._options.kafka.max_request_bytes - REQUEST_BYTES]
        return min(bounds if allowed is None else [*bounds, records_bytes_max(allowed)])

    def _refused(self, rule: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(option="dead_letter_topic", value=self.name, rule=rule, remedy=remedy)
