"""The record forwarder: sends the record batches of all tasks to the brokers, and answers questions about topics.

One session serves the whole transaction: it assigns producer id, epoch and sequence numbers, without decompressing
batches. So each partition has one run of sequence numbers, and there are no concurrent senders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import ConfigurationError, LocalProtocolError, UnknownTopicError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster, topic_limits
from spark_2pc_sink.kafka.produce_session import ProduceSession
from spark_2pc_sink.kafka.record_encoder import TopicLimits
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.sink.records.topics import TopicFacts, TopicRefusedError, write_answer
from spark_2pc_sink.sink.stream.attempt_input import BackgroundTask, Ended
from spark_2pc_sink.sink.stream.task_stream import FrameKind
from spark_2pc_sink.wire.record_batch import EMPTY_DIGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_2pc_sink.clock import Clock
    from spark_2pc_sink.kafka.batch_sender import PartitionReceipt
    from spark_2pc_sink.options import KafkaOptions
    from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
    from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, Released


#: Topics that brokers write themselves: clients may not write there (Kafka: ``Topic.INTERNAL_TOPICS``).
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_CORRECT: Final = "Correct the expression that makes the column"
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


@dataclass(frozen=True)
class KnownTopics:
    """Topic facts known before the first record.

    Attributes:
        facts: by topic name; topics that tasks ask for are added.
        ends: end offsets before any record of the batch was sent, as far as known.
        dead_letters: the sink's dead-letter topic, which no row may name; None without one.
    """

    facts: dict[str, TopicFacts]
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    dead_letters: str | None = None


@dataclass(frozen=True)
class Forwarded:
    """The records acknowledged by the brokers.

    Attributes:
        digest: 128-bit digest of the records.
        written: by partition; those without records are absent.
        record_bytes: compressed bytes of the record batches.
        topic_ids: ids of the topics that have records, as far as the brokers have ids (KIP-516).
    """

    digest: int = EMPTY_DIGEST
    written: Mapping[TopicPartition, PartitionReceipt] = field(default_factory=dict)
    record_bytes: int = 0
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
    """Forwards the records of one attempt in a thread, its `task`, which alone uses ``connections`` meanwhile.

    Without a ticket questions are answered, and no record is sent.
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
        try:
            with self._source.failing():
                while not isinstance(taken := self._source.take(FrameKind.RECORDS, _POLL_S), Ended):
                    if taken is not None:
                        self._handle(taken)
                if self._session is not None:
                    ids = {topic: facts.topic_id for topic, facts in self._topics.facts.items()}
                    self._forwarded = Forwarded.by(self._session, ids)
        except BaseException:
            self._connections.drop()
            raise

    def _cancel(self) -> None:
        if self._session is not None:
            self._session.cancel()

    def _handle(self, taken: Released) -> None:
        batch = taken.batch
        if batch is None:
            topic = bytes(taken.frame.payload).decode(errors="replace")
            self._source.answer(taken, write_answer(self._facts_of(topic)))
            return
        session = self._session = self._session or self._open()
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
        fault = "it is the sink's dead-letter topic" if topic == self._topics.dead_letters else None
        fault = fault or name_fault(topic)
        if fault is not None:
            return TopicRefusedError(fault, _CORRECT)
        cluster = self._connections.cluster()
        try:
            count = cluster.partition_counts([topic])[topic]
        except UnknownTopicError:
            rule = "Kafka has no topic of this name, and the sink does not create topics"
            return TopicRefusedError(rule, "Create the topic, or correct the expression that makes the column")
        limits = topic_limits(cluster, topic, cluster.deadline())
        found = self._topics.facts[topic] = TopicFacts(count, cluster.topic_id(topic), limits)
        return found

    def _open(self) -> ProduceSession:
        if self._ticket is None:
            raise LocalProtocolError(operation="forward", state="no transaction", rule="there must be no record")
        return ProduceSession(
            self._connections.cluster(),
            self._ticket,
            self._kafka,
            timestamp_ms=0,
            limits={topic: facts.limits for topic, facts in self._topics.facts.items()},
            ends=self._topics.ends,
        )


class TopicMetadata:
    """The driver's requests about topics, in one run of a query."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._limits: dict[str, tuple[TopicLimits, float]] = {}

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """The number of partitions of each topic, requested again for each batch: it may have grown.

        Raises UnknownTopicError if a topic does not exist.
        """
        return self._cluster.partition_counts(topics)

    def id_of(self, topic: str) -> str:
        """The topic's id as of its last `counts`; '' if the broker has none."""
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
