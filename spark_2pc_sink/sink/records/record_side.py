"""The path of a run's records to Kafka: topics, the thread that forwards records to the brokers, and dead letters.

The dead-letter topic gets the content of the dead-letter table in the Kafka transaction of the batch, after all output
of the tasks. Tasks never write there, so only the driver assigns sequence numbers in its partitions. A replay builds
the same records from the table, byte for byte and in the same order, since the digest of the batch covers them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from spark_2pc_sink.clock import Clock, now_ms
from spark_2pc_sink.errors import (
    ConfigurationError,
    DataError,
    LocalProtocolError,
    RecordRefusedError,
    RecordTooLargeError,
    UnknownTopicError,
)
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.batch_sender import REQUEST_BYTES, PartitionReceipt
from spark_2pc_sink.kafka.cluster import Cluster, end_offsets, topic_limits
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.kafka.record_encoder import TopicLimits, partition_for_key, records_bytes_max
from spark_2pc_sink.options import KafkaOptions, SinkOptions
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.bad_rows.bad_row import BadRow, BadRows, canonical_json
from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
from spark_2pc_sink.sink.records.record_columns import TopicFacts, TopicRefusedError
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, BackgroundTask, Ended, Released
from spark_2pc_sink.sink.stream.task_stream import FrameKind
from spark_2pc_sink.wire.batch_format import record_content
from spark_2pc_sink.wire.messages import OffsetSpec
from spark_2pc_sink.wire.record_batch import (
    EMPTY_DIGEST,
    RECORD_BYTES,
    EncodedBatch,
    combine_digests,
    encode_listed_batches,
)

#: Topics that brokers write themselves: clients may not write there (Kafka: ``Topic.INTERNAL_TOPICS``).
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
#: How often the thread checks whether the attempt has failed; frames wake it at once.
_POLL_S: Final = 1.0


def name_fault(topic: str) -> str | None:
    """Why no client may write to a topic of this name; None if one may."""
    if topic in _INTERNAL:
        return "it is an internal topic of Kafka"
    try:
        check_topic(topic)
    except ConfigurationError as error:
        return f"no topic can have this name: {error.rule}"
    return None


class ForwarderConnections:
    """Connections to the brokers, kept from batch to batch until any failure."""

    def __init__(self, kafka: KafkaOptions) -> None:
        self._kafka = kafka
        self._cluster: Cluster | None = None

    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._kafka)
        return self._cluster

    def drop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    @contextmanager
    def dropped_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.drop()
            raise


@dataclass(frozen=True)
class KnownTopics:
    """Topic facts known before the first record."""

    #: By topic name; topics that tasks ask for are added.
    facts: dict[str, TopicFacts]
    #: End offsets before any record of the batch was sent, as far as known.
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: The sink's dead-letter topic, which no row may name; None without one.
    dead_letters: str | None = None


@dataclass(frozen=True)
class Forwarded:
    """The records acknowledged by the brokers."""

    digest: int = EMPTY_DIGEST
    #: By partition; those without records are absent.
    written: Mapping[TopicPartition, PartitionReceipt] = field(default_factory=dict)
    #: Compressed bytes of the record batches.
    record_bytes: int = 0
    #: Ids of the topics that have records, as far as the brokers have ids (KIP-516).
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def by(cls, session: ProduceSession, topic_ids: Mapping[str, str]) -> Forwarded:
        """What a session has appended, after all of it is acknowledged; an id of '' is none."""
        written = session.flush()
        ids = {topic: topic_ids[topic] for topic in sorted({at.topic for at in written}) if topic_ids[topic]}
        return cls(session.digest, written, session.record_bytes, ids)

    @property
    def records(self) -> int:
        return sum(receipt.records for receipt in self.written.values())

    @property
    def offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """First and last offset by partition."""
        return {at: (receipt.first_offset, receipt.last_offset) for at, receipt in self.written.items()}


class RecordForwarder:
    """Forwards the record batches of all tasks in a thread, its `task`, and answers questions about topics.

    One session serves the whole transaction: it assigns producer id, epoch and sequence numbers, without decompressing
    batches. So each partition has one run of sequence numbers, and there are no concurrent senders. The thread alone
    uses ``connections`` meanwhile. Without a ticket questions are answered, and no record is sent.
    """

    def __init__(
        self,
        source: AttemptInput,
        ticket: TransactionTicket | None,
        connections: ForwarderConnections,
        kafka: KafkaOptions,
        topics: KnownTopics,
    ) -> None:
        self._source = source
        self._ticket = ticket
        self._connections = connections
        self._kafka = kafka
        self._topics = topics
        self._session: ProduceSession | None = None
        self._met: set[str] = set()
        self._forwarded = Forwarded()
        self.task: BackgroundTask = BackgroundTask(self._work, "spark_2pc_sink records", self._cancel)

    def finish(self) -> Forwarded:
        """Wait until the brokers have acknowledged everything; raises as `ProduceSession.append`."""
        self.task.finish()
        return self._forwarded

    def _work(self) -> None:
        with self._connections.dropped_on_failure(), self._source.failing():
            while not isinstance(taken := self._source.take(FrameKind.RECORDS, _POLL_S), Ended):
                if taken is not None:
                    self._handle(taken)
            if self._session is not None:
                ids = {topic: facts.topic_id for topic, facts in self._topics.facts.items()}
                self._forwarded = Forwarded.by(self._session, ids)

    def _cancel(self) -> None:
        if self._session is not None:
            self._session.cancel()

    def _handle(self, taken: Released) -> None:
        batch = taken.batch
        if batch is None:
            topic = bytes(taken.frame.payload).decode(errors="replace")
            self._source.answer(taken, json.dumps(asdict(self._facts_of(topic))).encode())
            return
        session = self._session
        if session is None:
            if self._ticket is None:
                raise LocalProtocolError(operation="forward", state="no transaction", rule="there must be no record")
            session = self._session = ProduceSession(
                self._connections.cluster(),
                self._ticket,
                self._kafka,
                timestamp_ms=0,
                limits={topic: facts.limits for topic, facts in self._topics.facts.items()},
                ends=self._topics.ends,
            )
        if batch.partition.topic not in self._met:
            self._met.add(batch.partition.topic)
            session.look_up(self._led_partitions(batch.partition))
        session.append_encoded(batch)
        self._source.done(taken)

    def _led_partitions(self, partition: TopicPartition) -> list[TopicPartition]:
        """All partitions of its topic that a broker leads: requesting each separately costs a round trip."""
        cluster, topic = self._connections.cluster(), partition.topic
        known = self._topics.facts.get(topic)
        every = [TopicPartition(topic, number) for number in range(known.partition_count if known else 0)]
        if any(each not in self._topics.ends and each not in cluster.leaders for each in every):
            cluster.refresh([topic], cluster.deadline())
        led = [each for each in every if each in self._topics.ends or each in cluster.leaders]
        return [partition, *led]

    def _facts_of(self, topic: str) -> TopicFacts | TopicRefusedError:
        if topic in self._topics.facts:
            return self._topics.facts[topic]
        fault = "it is the sink's dead-letter topic" if topic == self._topics.dead_letters else name_fault(topic)
        if fault is not None:
            return TopicRefusedError(fault, "Correct the expression that makes the column")
        cluster = self._connections.cluster()
        try:
            count = cluster.partition_counts([topic])[topic]
        except UnknownTopicError:
            rule = "Kafka has no topic of this name, and the sink does not create topics"
            return TopicRefusedError(rule, "Create the topic, or correct the expression that makes the column")
        limits = topic_limits(cluster, topic, cluster.deadline())
        found = self._topics.facts[topic] = TopicFacts(count, cluster.topic_id(topic), limits)
        return found


class TopicMetadata:
    """The driver's requests about topics, in one run of a query."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._limits: dict[str, tuple[TopicLimits, float]] = {}

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions by topic, requested again for each batch: they may grow. UnknownTopicError if one is missing."""
        return self._cluster.partition_counts(topics)

    def id_of(self, topic: str) -> str:
        """As of the last `counts`; '' if the broker has none."""
        return self._cluster.topic_id(topic)

    def counts_of_existing(self, topics: Iterable[str]) -> dict[str, int]:
        """The same, without missing topics."""
        found = self._cluster.existing_topics(topic for topic in topics if name_fault(topic) is None)
        return {name: len(topic.partitions) for name, topic in found.items()}

    def limits(self, topic: str) -> TopicLimits:
        """The limits of a topic, requested again when the answer is older than ``metadata.max.age.ms``."""
        limits, until_s = self._limits.get(topic, (None, 0.0))
        if limits is None or self._clock.now_s() >= until_s:
            limits = topic_limits(self._cluster, topic, self._cluster.deadline())
            self._limits[topic] = limits, self._clock.now_s() + self._cluster.options.metadata_max_age_ms / 1000
        return limits


#: A dead letter larger than this, uncompressed, is sent without its row: below a topic's default limit (Kafka:
#: max.message.bytes, 1 048 588), so a topic with a higher limit makes no difference.
DEAD_LETTER_BYTES_MAX: Final = 1_000_000
#: A topic with a lower limit may not even have room for a dead letter without its row.
MESSAGE_BYTES_MIN: Final = 32 * 1024
#: A topic with this limit, Kafka's default, accepts each dead letter of at most `DEAD_LETTER_BYTES_MAX`.
MESSAGE_BYTES_WANTED: Final = 1_048_588
#: Header names. Kafka Connect's begin with ``__connect.errors.`` (KIP-298).
HEADER_PREFIX: Final = "__spark_2pc.errors."


def too_small(message_bytes_max: int) -> str:
    """Why a topic with this max.message.bytes accepts no dead letters; '' if it does."""
    if message_bytes_max >= MESSAGE_BYTES_MIN:
        return ""
    return f"max.message.bytes of the topic is {message_bytes_max}, and a dead letter may need {MESSAGE_BYTES_MIN}"


def dead_letter_records(
    rows: Iterable[BadRow], batch: Mapping[str, str | int], *, table: str, partition_count: int, bytes_max: int
) -> list[tuple[int, bytes]]:
    """The records of the bad rows of a batch, in the order of their identities: partition and content.

    A value has the columns of the table as JSON, except the time of the decision: records are built before it.
    ``batch`` has those that name the batch. A record of more than ``bytes_max``, uncompressed, is sent without its row.
    """
    without_row = _json({"row": None, "row_left_out": f"the row is in table {table}"})
    records = []
    for row in sorted(rows, key=lambda each: each.identity):
        columns = {**batch, **row.columns}
        key = row.identity.encode()
        headers = [
            (HEADER_PREFIX + name.replace("_", "."), str(value).encode())
            for name, value in columns.items()
            if name != "identity"
        ]
        told = _json(columns)
        content = record_content(key, f'{{{told},"row":{canonical_json(row.row)}}}'.encode(), headers)
        if len(content) + RECORD_BYTES > bytes_max:
            content = record_content(key, f"{{{told},{without_row}}}".encode(), headers)
        records.append((partition_for_key(key, partition_count), content))
    return records


def _json(members: Mapping[str, str | int | None]) -> str:
    """The members of a JSON object, without its braces."""
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))[1:-1]


#: Maximum partitions whose end offsets are fetched before it is known which of them get rows of a small batch.
_ENDS_MAX: Final = 64


@dataclass(frozen=True, kw_only=True)
class DeadLetterRecords:
    """The dead letters of a batch, as record batches that are ordered within each partition."""

    batches: tuple[EncodedBatch, ...] = ()
    sent: Forwarded = field(default_factory=Forwarded)

    @property
    def count(self) -> int:
        return sum(batch.record_count for batch in self.batches)

    @property
    def digest(self) -> int:
        return combine_digests(*(batch.digest for batch in self.batches))


class DeadLetterTopic:
    """The dead-letter topic for one run of a query; without one, nothing is sent."""

    def __init__(
        self, options: SinkOptions, query_id: str, topics: TopicMetadata, connections: ForwarderConnections
    ) -> None:
        self.name: str | None = options.dead_letter_topic
        self._options = options
        self._query_id = query_id
        self._topics = topics
        self._connections = connections

    def __str__(self) -> str:
        """Name among the outputs of a report."""
        return f"DeadLetters({self.name!r})"

    def check(self) -> None:
        """Check that the topic can take dead letters, before the first batch; UnknownTopicError if it is missing."""
        if self.name is None:
            return
        if (fault := name_fault(self.name)) is not None:
            raise self._refused(fault, "name another topic")
        self._topics.counts([self.name])
        allowed = self._topics.limits(self.name).message_bytes_max
        if allowed is not None and (rule := too_small(allowed)):
            raise self._refused(rule, f"set max.message.bytes={MESSAGE_BYTES_WANTED} or more on the topic")
        if self._options.kafka.max_request_bytes < MESSAGE_BYTES_MIN + REQUEST_BYTES:
            rule = f"max.request.size is {self._options.kafka.max_request_bytes}, and a dead letter may need more"
            raise self._refused(rule, f"raise it to {MESSAGE_BYTES_MIN + REQUEST_BYTES} or more")

    def partitions(self, bad_rows: BadRows, batch_id: int) -> list[TopicPartition]:
        return list(dict.fromkeys(batch.partition for batch in self.encoded(bad_rows, batch_id).batches))

    def encoded(self, bad_rows: BadRows, batch_id: int) -> DeadLetterRecords:
        if self.name is None or not bad_rows:
            return DeadLetterRecords()
        options, kafka = self._options, self._options.kafka
        partition_count = self._topics.counts([self.name])[self.name]
        # The same for each replay, unless the topic is altered.
        bytes_max = min(DEAD_LETTER_BYTES_MAX, kafka.max_request_bytes - REQUEST_BYTES)
        allowed = self._topics.limits(self.name).message_bytes_max
        if allowed is not None:
            bytes_max = min(bytes_max, records_bytes_max(allowed))
        records = dead_letter_records(
            bad_rows.values(),
            {"transactional_id": options.transactional_id, "query_id": self._query_id, "batch_id": batch_id},
            table=str(options.dead_letter_name),
            partition_count=partition_count,
            bytes_max=bytes_max,
        )
        contents: dict[TopicPartition, list[bytes]] = defaultdict(list)
        for number, content in records:
            contents[TopicPartition(self.name, number)].append(content)
        batches = encode_listed_batches(
            contents,
            bytes_max=min(kafka.batch_bytes_max, bytes_max),
            timestamp_ms=now_ms(),
            compression=kafka.compression,
            level=kafka.compression_level,
        )
        return DeadLetterRecords(batches=tuple(batches))

    def send(self, ticket: TransactionTicket, bad_rows: BadRows, batch_id: int) -> DeadLetterRecords:
        """Send the dead letters of a batch, and wait until each is acknowledged; raises as `ProduceSession.append`."""
        letters = self.encoded(bad_rows, batch_id)
        if self.name is None or not letters.batches:
            return letters
        with self._connections.dropped_on_failure():
            session = ProduceSession(
                self._connections.cluster(),
                ticket,
                self._options.kafka,
                timestamp_ms=now_ms(),
                limits={self.name: self._topics.limits(self.name)},
            )
            session.look_up(batch.partition for batch in letters.batches)
            for batch in letters.batches:
                session.append_encoded(batch)
            return replace(letters, sent=Forwarded.by(session, {self.name: self._topics.id_of(self.name)}))

    def _refused(self, rule: str, remedy: str) -> ConfigurationError:
        return refused("dead_letter_topic", self.name, rule, remedy)


class RecordSide:
    """The Kafka side of one run of a query; ``cluster`` is the connection for metadata and the transaction."""

    def __init__(self, options: SinkOptions, query_id: str, clock: Clock) -> None:
        self._options = options
        self.cluster: Cluster = Cluster(options.kafka)
        self.topics: TopicMetadata = TopicMetadata(self.cluster, clock)
        # Separate from the cluster above, which must not be lost when a broker fails in the middle of a batch.
        self._connections = ForwarderConnections(options.kafka)
        self.dead_letter_topic: DeadLetterTopic = DeadLetterTopic(options, query_id, self.topics, self._connections)

    def known(self) -> KnownTopics:
        """Metadata fetched from Kafka before the first record of a batch."""
        counts = self.topics.counts(self._options.topics)
        facts = {topic: self._facts(topic, count) for topic, count in counts.items()}
        return KnownTopics(facts, dead_letters=self.dead_letter_topic.name)

    def known_with_ends(self) -> KnownTopics:
        """The same, with the end offsets unless there are many: for a batch whose rows are being collected."""
        known = self.known()
        every = [TopicPartition(name, at) for name, facts in known.facts.items() for at in range(facts.partition_count)]
        if len(every) > _ENDS_MAX:
            return known
        with self._connections.dropped_on_failure():
            cluster = self._connections.cluster()
            return replace(known, ends=end_offsets(cluster, every, OffsetSpec.LATEST, cluster.deadline()))

    def known_after(self, error: DataError) -> KnownTopics:
        """The same, with a broker's refusal as a limit of its topic, whose settings may be newer, or not readable."""
        known = self.known()
        if not isinstance(error, (RecordRefusedError, RecordTooLargeError)):
            return known
        topic = error.topic
        facts = known.facts.get(topic) or self._facts(topic, self.topics.counts([topic])[topic])
        limits = facts.limits
        if isinstance(error, RecordTooLargeError):
            if limits.message_bytes_max is None or limits.message_bytes_max >= error.record_bytes:
                limits = replace(limits, message_bytes_max=error.record_bytes - 1, bytes_limit=error.limit)
        elif error.lacks_key:
            limits = replace(limits, needs_keys=True)
        return replace(known, facts={**known.facts, topic: replace(facts, limits=limits)})

    def forwarder(self, source: AttemptInput, ticket: TransactionTicket | None, topics: KnownTopics) -> RecordForwarder:
        """The forwarder of an attempt; without a ticket no record is to be sent."""
        return RecordForwarder(source, ticket, self._connections, self._options.kafka, topics)

    def close(self) -> None:
        self._connections.drop()
        self.cluster.close()

    def _facts(self, topic: str, count: int) -> TopicFacts:
        return TopicFacts(count, self.topics.id_of(topic), self.topics.limits(topic))
