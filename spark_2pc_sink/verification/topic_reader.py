"""The reader of topics: by confluent-kafka, as any consumer of the sink's records would."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from itertools import groupby
from typing import Any, Final, cast

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.verification.batch_check import BatchCheck
from spark_2pc_sink.verification.history_check import Logs
from spark_2pc_sink.verification.kafka_client import NO_TOPIC, as_error, client_settings, translated
from spark_2pc_sink.verification.record_digest import Headers
from spark_2pc_sink.verification.refused_login import check_login

with extra("verify"):
    from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicCollection
    from confluent_kafka import KafkaError as LibraryError
    from confluent_kafka import TopicPartition as LibraryPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

_log = logging.getLogger(__name__)

#: librdkafka prints topic ids in the other alphabet of Base64 than Kafka does.
_BASE64_OF_KAFKA: Final = str.maketrans("+/", "-_")
#: What librdkafka holds of records that were not asked for yet.
QUEUED_KBYTES_MAX: Final = 8_192
#: What is fetched at once of one partition. It may be compressed, and then takes several times as much memory.
_FETCH_BYTES: Final = 512 * 1024
#: And of all partitions of a broker. librdkafka wants room for so much more in the largest answer.
_FETCH_ALL_BYTES: Final = 4 * _FETCH_BYTES
_ANSWER_MORE_BYTES: Final = 512
#: Of a partition whose batches become much: the first comes whole (KIP-74), and no other.
_FETCH_ONE_BATCH: Final = 1
#: What librdkafka may read behind the end that it is asked for, before it is told to stop: twice what it holds.
_AHEAD_BYTES: Final = 2 * QUEUED_KBYTES_MAX * 1024
_QUEUE_BACKOFF_MS: Final = 10
_MESSAGES_MAX: Final = 10_000
_POLL_S: Final = 0.2
#: A record so few offsets further on is read up to; for one that is farther the reader moves.
_LEAP: Final = 1_000
#: A topic was just made, or a leader has moved.
_NO_LEADER_YET: Final = frozenset(
    {
        LibraryError.NOT_LEADER_FOR_PARTITION,
        LibraryError.LEADER_NOT_AVAILABLE,
        LibraryError.REPLICA_NOT_AVAILABLE,
        LibraryError.OFFSET_NOT_AVAILABLE,
    }
)
#: What a reader is told at the end of a log, and where its beginning has moved past what was asked for.
_NOT_THERE: Final = frozenset({LibraryError._PARTITION_EOF, LibraryError._AUTO_OFFSET_RESET})  # noqa: SLF001 - public names
#: Closing leaves no group and commits nothing, so it waits for nobody else.
_CLOSE_S: Final = 10.0
#: Brokers that let a client in answer its first question long before; see `check_login`.
_LOGIN_S: Final = 1.0
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class TopicReader:
    """Describes topics and reads records. Use it as a context manager.

    Args:
        options: how to reach the brokers. A request may take ``max_block_ms``; so long may nothing arrive, too.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._settings = client_settings(options)
        self._deadline_ms = options.max_block_ms
        self._admin = AdminClient(self._settings, logger=_log)
        self._batch_bytes_max = max(options.receive_bytes_max, _FETCH_ALL_BYTES + _ANSWER_MORE_BYTES)
        self._batch_check = BatchCheck(
            options, bytes_max=self._batch_bytes_max, together_bytes=_FETCH_BYTES, ahead_bytes=_AHEAD_BYTES
        )

    def cluster_id(self) -> str:
        """Of the cluster; the first question to the brokers.

        Raises:
            AuthorizationError: they do not let us in.
            KafkaError, KafkaTimeoutError: they refused, or did not answer.
        """
        with translated("DescribeCluster", deadline_ms=self._deadline_ms):
            asked = self._admin.describe_cluster(request_timeout=self._timeout_s)
            if not wait([asked], timeout=_LOGIN_S).done:
                check_login(self._options)
            return str(asked.result().cluster_id)

    def describe(self, topics: Collection[str]) -> Logs:
        """Ids, bounds and clean-up policy of topics; of those that do not exist, nothing."""
        if not topics:
            return Logs()
        ids: dict[str, str] = {}
        partitions: list[TopicPartition] = []
        with translated("DescribeTopicPartitions", deadline_ms=self._deadline_ms):
            asked = self._admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=self._timeout_s)
            for topic, answer in asked.items():
                try:
                    described = answer.result()
                except KafkaException as error:
                    if error.args[0].code() not in NO_TOPIC:
                        raise
                    continue
                ids[topic] = _shown_id(described.topic_id)
                partitions += [TopicPartition(topic, each.id) for each in described.partitions]
        return Logs(
            topic_ids=ids,
            starts=self._offsets(partitions, _EARLIEST),
            ends=self._offsets(partitions, _LATEST),
            written=self._offsets(partitions, _LATEST, committed=False),
            compacted=self._compacted(sorted(ids)),
        )

    def committed_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last offset that a reader of committed records sees."""
        return self._offsets(partitions, _LATEST)

    def read(
        self, bounds: Mapping[TopicPartition, tuple[int, int]], *, committed: bool = True
    ) -> Iterator[tuple[TopicPartition, Sequence[Message]]]:
        """Records from the first offset of each partition up to the second, without it.

        Args:
            bounds: by partition. The end is one that such a reader can reach.
            committed: without records of transactions that are open or aborted.

        Yields:
            records of one partition, at least one, in the order of their offsets.

        Raises:
            KafkaError, KafkaTimeoutError: the brokers refused, or nothing came for ``max_block_ms``; or a batch is one
                that librdkafka would not survive.
        """
        wanted = {at: bound for at, bound in bounds.items() if bound[1] > bound[0]}
        ends = {(at.topic, at.partition): end for at, (_, end) in wanted.items()}
        self._batch_check.look(wanted)
        consumer = self._consumer(committed=committed)
        try:
            with translated("Fetch", deadline_ms=self._deadline_ms):
                consumer.assign([LibraryPartition(at.topic, at.partition, start) for at, (start, _) in wanted.items()])
                yield from self._records(consumer, ends)
        finally:
            _close(consumer)

    def pick(
        self, wanted: Iterable[tuple[TopicPartition, int]], *, committed: bool = False
    ) -> Iterator[tuple[TopicPartition, Message]]:
        """Single records; one that is not there (any more) is passed over.

        Args:
            wanted: partition and offset of each, those of one partition together and ascending.
            committed: only those that a reader of committed records sees.
        """
        consumer = self._consumer(committed=committed)
        place: TopicPartition | None = None
        position = 0
        ready: deque[Message] = deque()
        try:
            with translated("Fetch", deadline_ms=self._deadline_ms):
                for partition, offset in wanted:
                    if not self._batch_check.has_seen(partition, offset):
                        self._batch_check.look({partition: (offset, offset + 1)})
                    if partition != place or not position <= offset <= position + _LEAP:
                        consumer.assign([LibraryPartition(partition.topic, partition.partition, offset)])
                        place, position = partition, offset
                        ready.clear()
                    found = self._next_at(consumer, partition, offset, ready)
                    position = offset + 1
                    if found is None:
                        # Behind the end of a log, or before its beginning, nothing more comes.
                        place = None
                        continue
                    yield partition, found
        finally:
            _close(consumer)

    def _next_at(
        self, consumer: Consumer, partition: TopicPartition, offset: int, ready: deque[Message]
    ) -> Message | None:
        """The record at an offset, read up to it; None where the next one, or the end, is behind it."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            while ready:
                message = ready[0]
                error = message.error()
                if error is not None and error.code() not in _NOT_THERE:
                    raise as_error("Fetch", error, deadline_ms=self._deadline_ms)
                at = message.offset() or 0
                if _place(message) == (partition.topic, partition.partition) and (error is not None or at >= offset):
                    return ready.popleft() if error is None and at == offset else None
                ready.popleft()
            ready.extend(consumer.consume(self._at_once(_LEAP), timeout=_POLL_S))
            if not ready and time.monotonic() > deadline:
                raise self._nothing_came([partition])

    def _records(
        self,
        consumer: Consumer,
        ends: dict[tuple[str, int], int],
    ) -> Iterator[tuple[TopicPartition, Sequence[Message]]]:
        heard_at = time.monotonic()
        topics = {topic for topic, _ in ends}
        while ends:
            messages = consumer.consume(self._at_once(_MESSAGES_MAX), timeout=_POLL_S)
            if not messages:
                if time.monotonic() - heard_at > self._timeout_s:
                    raise self._nothing_came([TopicPartition(*at) for at in sorted(ends)])
                continue
            heard_at = time.monotonic()
            # The topic of each record is looked at only where there are several.
            for _, together in groupby(messages, Message.partition if len(topics) == 1 else _place):
                run = list(together)
                place = _place(run[0])
                was_open = place in ends
                records = self._run(run, place, ends)
                if was_open and place not in ends:
                    # What is written behind it from now on is nobody's to read, and nobody has looked at it.
                    consumer.pause([LibraryPartition(*place)])
                if records:
                    yield TopicPartition(*place), records

    def _nothing_came(self, partitions: Iterable[TopicPartition]) -> KafkaTimeoutError:
        left = ", ".join(map(str, partitions))
        return KafkaTimeoutError(
            operation="Fetch", deadline_ms=self._deadline_ms, last_error=f"no record came of {left}"
        )

    def _run(self, messages: list[Message], place: tuple[str, int], ends: dict[tuple[str, int], int]) -> list[Message]:
        """The records among messages of one partition; notes where its end is reached."""
        errors = [error for message in messages if (error := message.error()) is not None]
        for error in errors:
            if error.code() != LibraryError._PARTITION_EOF:  # noqa: SLF001 - its public name
                raise as_error("Fetch", error, deadline_ms=self._deadline_ms)
        end = ends.get(place)
        if end is None:
            return []
        # At the end of a log a reader is told its position: the last offsets may be no records, but markers.
        if (messages[-1].offset() or 0) >= end - (not errors):
            del ends[place]
        if errors:
            messages = [message for message in messages if message.error() is None]
        _must_ascend(messages, place)
        if messages and (messages[-1].offset() or 0) >= end:
            messages = [message for message in messages if (message.offset() or 0) < end]
        return messages

    def _offsets(
        self, partitions: Collection[TopicPartition], spec: Any, *, committed: bool = True
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        wanted = {LibraryPartition(each.topic, each.partition): spec for each in partitions}
        deadline = time.monotonic() + self._timeout_s
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        with translated("ListOffsets", deadline_ms=self._deadline_ms):
            while wanted:
                answers = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=self._timeout_s)
                for each, answer in answers.items():
                    try:
                        found[TopicPartition(each.topic, each.partition)] = answer.result().offset
                        del wanted[each]
                    except KafkaException as error:
                        if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                            raise
                if wanted:
                    time.sleep(_POLL_S)
        return found

    def _compacted(self, topics: Sequence[str]) -> frozenset[str]:
        with translated("DescribeConfigs", deadline_ms=self._deadline_ms):
            asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
            answers = self._admin.describe_configs(asked, request_timeout=self._timeout_s) if asked else {}
            return frozenset(
                resource.name
                for resource, answer in answers.items()
                if "compact" in str(answer.result()["cleanup.policy"].value)
            )

    def _consumer(self, *, committed: bool) -> Consumer:
        settings = _reading(committed=committed, batch_bytes_max=self._batch_bytes_max, dense=self._batch_check.dense)
        return Consumer(self._settings | settings, logger=_log)

    def _at_once(self, messages_max: int) -> int:
        """How many messages are waited for: while more are, librdkafka's queue takes in more."""
        return 1 if self._batch_check.dense else messages_max

    @property
    def _timeout_s(self) -> float:
        return self._deadline_ms / 1000


def offsets_of(messages: Sequence[Message]) -> list[int]:
    """The offsets of records; librdkafka's types allow none, and what was consumed has one."""
    return cast("list[int]", [message.offset() for message in messages])


def headers_of(message: Message) -> Headers | None:
    """The headers of a record; librdkafka's types allow more than a consumer ever gets."""
    return cast("Headers | None", message.headers())


def _close(consumer: Consumer) -> None:
    """Close a consumer. One that does not end, because librdkafka is lost in a batch, is left to the process's end."""
    closing = threading.Thread(target=consumer.close, name="close a consumer", daemon=True)
    closing.start()
    closing.join(_CLOSE_S)
    if closing.is_alive():
        _log.warning("a consumer of librdkafka does not end; its thread is left behind, and takes a processor")


def _must_ascend(messages: Sequence[Message], place: tuple[str, int]) -> None:
    """Each record of a log has an offset of its own.

    librdkafka takes records out of a batch until its data ends, however many its header says. A batch of a few
    kilobytes can so become millions of records at one offset, which nobody has written.

    Raises:
        KafkaError: some have the same offset, or go backwards.
    """
    if not messages:
        return
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    if last - first < len(messages) - 1:
        raise KafkaError(
            api="Fetch",
            code=Code.CORRUPT_MESSAGE,
            name=Code.CORRUPT_MESSAGE.name,
            detail=f"{len(messages)} records of {'-'.join(map(str, place))} have offsets {first} to {last}: a batch "
            "there has other records than its header says; look at the batch with kafka-dump-log.sh",
        )


def _place(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def _shown_id(topic_id: Any) -> str:
    """The id as Kafka's tools print it; '' where the broker has none."""
    empty = topic_id is None or not (topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits())
    return "" if empty else str(topic_id).translate(_BASE64_OF_KAFKA)


def _reading(*, committed: bool, batch_bytes_max: int, dense: bool) -> dict[str, Any]:
    return {
        "group.id": "spark-2pc-verify",  # never joined: partitions are assigned by hand
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # Records that retention removes while they are read are an error, not a leap.
        "auto.offset.reset": "error",
        "queued.max.messages.kbytes": QUEUED_KBYTES_MAX,
        "queued.min.messages": 50_000,
        # With a full queue librdkafka fetches nothing for so long; its own second is longer than the queue lasts.
        "fetch.queue.backoff.ms": _QUEUE_BACKOFF_MS,
        "fetch.message.max.bytes": _FETCH_ONE_BATCH if dense else _FETCH_BYTES,
        "fetch.max.bytes": _FETCH_ALL_BYTES,
        # It is also what librdkafka lets a batch of zstd, snappy or lz4 become.
        "receive.message.max.bytes": batch_bytes_max,
        "fetch.wait.max.ms": 100,
    }
