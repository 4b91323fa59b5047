"""The reader of topics, based on confluent-kafka, like any consumer of the sink's records."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from importlib.metadata import version
from itertools import groupby
from typing import Any, Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, KafkaError, KafkaTimeoutError, UnknownTopicError
from spark_2pc_sink.extras import extra
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.logins.tokens import confluent_callback, token_source
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.verification.history import Ranges, TopicLogs
from spark_2pc_sink.verification.own_client import BatchCheck, check_login

with extra("verify"):
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError as LibraryError,
        KafkaException,
        Message,
        TopicCollection,
        TopicPartition as LibraryPartition,
        libversion,
    )
    from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

_log = logging.getLogger(__name__)


def _codes(*names: str) -> frozenset[int]:
    return frozenset(getattr(LibraryError, name) for name in names)


_NO_ANSWER: Final = _codes("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE")
_REFUSED: Final = _codes(
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
)
#: The topic or partition does not exist.
_NO_TOPIC: Final = _codes("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
#: A topic was just made, or a leader has moved.
_NO_LEADER_YET: Final = _codes(
    "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE"
)
_END: Final = _codes("_PARTITION_EOF")
#: Also that of a log start beyond the requested offset.
_LOST: Final = _END | _codes("_AUTO_OFFSET_RESET")
#: Options with the same name in librdkafka.
_SAME_SETTINGS: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.password",
    "ssl.crl.location",
)
#: librdkafka prints topic ids in a different alphabet of Base64 than Kafka.
_BASE64_OF_KAFKA: Final = str.maketrans("+/", "-_")
#: librdkafka's buffer of records that were not requested yet.
QUEUED_KBYTES_MAX: Final = 8_192
#: Bytes fetched at once from one partition. They may be compressed, and then take several times as much memory.
_FETCH_BYTES: Final = 512 * 1024
#: The same for all partitions of a broker. librdkafka needs this much extra room in the largest answer.
_FETCH_ALL_BYTES: Final = 4 * _FETCH_BYTES
_ANSWER_MORE_BYTES: Final = 512
#: What librdkafka may read past the requested end before it is stopped: twice its buffer.
_AHEAD_BYTES: Final = 2 * QUEUED_KBYTES_MAX * 1024
_MESSAGES_MAX: Final = 10_000
#: How long a request for messages waits for more of them, or for a leader.
_POLL_S: Final = 0.02
#: Up to this distance the reader reads on to the next record; beyond it, it seeks.
_LEAP: Final = 1_000
#: How many single records are looked up at once.
_PICKED_MAX: Final = 10_000
#: Closing does not leave a group or commit offsets, so it need not wait for other members.
_CLOSE_S: Final = 10.0
#: Brokers that accept the login answer the first request long before; see `check_login`.
_LOGIN_S: Final = 1.0
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class TopicReader:
    """Describes topics and reads records. ``max_block_ms`` limits a request, and the time without data."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._settings = client_settings(options)
        self._deadline_ms = options.max_block_ms
        self._timeout_s = self._deadline_ms / 1000
        self._admin = AdminClient(self._settings, logger=_log)
        bytes_max = max(options.receive_bytes_max, _FETCH_ALL_BYTES + _ANSWER_MORE_BYTES)
        self._batch_check = BatchCheck(
            options=options, bytes_max=bytes_max, together_bytes=_FETCH_BYTES, ahead_bytes=_AHEAD_BYTES
        )

    def cluster_id(self) -> str:
        """The id of the cluster, by the first request to the brokers; AuthorizationError if they refuse the login."""
        with self._translated("DescribeCluster"):
            asked = self._admin.describe_cluster(request_timeout=self._timeout_s)
            if not wait([asked], timeout=_LOGIN_S).done:
                check_login(self._options)
            return str(asked.result().cluster_id)

    def describe(self, topics: Collection[str]) -> TopicLogs:
        """Ids, bounds and clean-up policy of topics; missing topics are omitted."""
        if not topics:
            return TopicLogs()
        ids: dict[str, str] = {}
        partitions: list[TopicPartition] = []
        with self._translated("DescribeTopicPartitions"):
            asked = self._admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=self._timeout_s)
            for topic, answer in asked.items():
                try:
                    described = answer.result()
                except KafkaException as error:
                    if error.args[0].code() not in _NO_TOPIC:
                        raise
                    continue
                shown = str(described.topic_id or "").translate(_BASE64_OF_KAFKA)
                # A broker without ids shows that of zeros.
                ids[topic] = shown if shown.strip("A") else ""
                partitions += [TopicPartition(topic, each.id) for each in described.partitions]
        with self._translated("DescribeConfigs"):
            resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(ids)]
            answers = self._admin.describe_configs(resources, request_timeout=self._timeout_s) if ids else {}
            policies = {resource.name: answer.result()["cleanup.policy"].value for resource, answer in answers.items()}
        return TopicLogs(
            topic_ids=ids,
            starts=self._offsets(partitions, _EARLIEST),
            ends=self._offsets(partitions, _LATEST),
            written=self._offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED),
            compacted=frozenset(topic for topic, policy in policies.items() if "compact" in str(policy)),
        )

    def _offsets(
        self, partitions: Collection[TopicPartition], spec: Any, level: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        wanted = {LibraryPartition(each.topic, each.partition): spec for each in partitions}
        deadline = time.monotonic() + self._timeout_s
        with self._translated("ListOffsets"):
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

    def read(self, bounds: Ranges, *, committed: bool = True) -> Iterator[tuple[TopicPartition, Sequence[Message]]]:
        """Records from the first offset of each partition up to the second, without it; portions of one partition each.

        Without ``committed``, also those of open and aborted transactions. Such a reader must be able to reach the end.

        Raises KafkaError if a batch would crash librdkafka, KafkaTimeoutError if no data arrived for ``max_block_ms``.
        """
        wanted = {at: bound for at, bound in bounds.items() if bound[1] > bound[0]}
        if wanted:
            self._batch_check.check(wanted)
            with self._consumer(committed=committed) as consumer:
                yield from self._records(consumer, wanted)

    def pick(
        self, wanted: Iterable[tuple[TopicPartition, int]], *, committed: bool = False
    ) -> Iterator[tuple[TopicPartition, Message]]:
        """Look up single records, grouped by partition and in ascending order; missing ones are skipped."""
        with self._consumer(committed=committed) as consumer:
            for at, offsets in _close_together(wanted):
                bounds = {at: (offsets[0], offsets[-1] + 1)}
                if not all(self._batch_check.has_seen(at, offset) for offset in offsets):
                    self._batch_check.check(bounds)
                chosen = frozenset(offsets)
                for _, messages in self._records(consumer, bounds, lenient=True):
                    yield from ((at, message) for message in messages if message.offset() in chosen)

    @contextmanager
    def _consumer(self, *, committed: bool) -> Iterator[Consumer]:
        """A consumer. One that does not close, because librdkafka is stuck, is left until the process ends."""
        consumer = Consumer(self._settings | _reading(self._batch_check, committed=committed), logger=_log)
        try:
            with self._translated("Fetch"):
                yield consumer
        finally:
            closing = threading.Thread(target=consumer.close, name="close a consumer", daemon=True)
            closing.start()
            closing.join(_CLOSE_S)
            if closing.is_alive():
                _log.warning("librdkafka consumer did not close; abandoning its thread, which may spin on one CPU")

    def _records(
        self, consumer: Consumer, bounds: Ranges, *, lenient: bool = False
    ) -> Iterator[tuple[TopicPartition, Sequence[Message]]]:
        """Read ranges; if ``lenient``, also those that the logs have lost."""
        consumer.assign([LibraryPartition(at.topic, at.partition, start) for at, (start, _) in bounds.items()])
        ends = {(at.topic, at.partition): end for at, (_, end) in bounds.items()}
        # The topic of each record is only checked if there are several.
        place_of = Message.partition if len({topic for topic, _ in ends}) == 1 else _place
        # While more messages are awaited, librdkafka's queue receives more.
        at_once = 1 if self._batch_check.dense else _MESSAGES_MAX
        heard_at = time.monotonic()
        while ends:
            messages = consumer.consume(at_once, timeout=_POLL_S)
            if messages:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > self._timeout_s:
                why = f"no record arrived of {', '.join(str(TopicPartition(*at)) for at in sorted(ends))}"
                raise KafkaTimeoutError(operation="Fetch", deadline_ms=self._deadline_ms, last_error=why)
            for _, together in groupby(messages, place_of):
                run = list(together)
                place = _place(run[0])
                if place not in ends:
                    continue
                records = self._run(run, place, ends, lenient=lenient)
                if place not in ends and not lenient:
                    # Later records were not requested, and were not inspected.
                    consumer.pause([LibraryPartition(*place)])
                if records:
                    yield TopicPartition(*place), records

    def _run(
        self, messages: list[Message], place: tuple[str, int], ends: dict[tuple[str, int], int], *, lenient: bool
    ) -> list[Message]:
        """The records among messages of one partition; notes if its end is reached."""
        errors = [error for message in messages if (error := message.error()) is not None]
        for error in errors:
            if error.code() not in (_LOST if lenient else _END):
                raise as_error("Fetch", error, deadline_ms=self._deadline_ms)
        end = ends[place]
        # At the end of a log a reader gets its position: the last offsets may be markers instead of records.
        if (messages[-1].offset() or 0) >= end - (not errors) or (errors and lenient):
            del ends[place]
        if errors:
            messages = [message for message in messages if message.error() is None]
        first, last = (messages[at].offset() or 0 if messages else 0 for at in (0, -1))
        # librdkafka reads records from a batch until its data ends, regardless of the count in its header. A batch of a
        # few kilobytes can thus become millions of records at one offset, which no producer has written.
        if messages and last - first < len(messages) - 1:
            detail = (
                f"{len(messages)} records of {'-'.join(map(str, place))} have offsets {first} to {last}: the records "
                "of a batch contradict its header; inspect the batch with kafka-dump-log.sh"
            )
            code = Code.CORRUPT_MESSAGE
            raise KafkaError(api="Fetch", code=code, name=code.name, detail=detail)
        if messages and last >= end:
            messages = [message for message in messages if (message.offset() or 0) < end]
        return messages

    @contextmanager
    def _translated(self, operation: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise as_error(operation, error.args[0], deadline_ms=self._deadline_ms) from error


def _close_together(wanted: Iterable[tuple[TopicPartition, int]]) -> Iterator[tuple[TopicPartition, list[int]]]:
    """Group offsets of one partition that are near each other, to be read at once."""
    for at, records in groupby(wanted, lambda each: each[0]):
        offsets: list[int] = []
        for _, offset in records:
            if offsets and (offset - offsets[-1] > _LEAP or len(offsets) >= _PICKED_MAX):
                yield at, offsets
                offsets = []
            offsets.append(offset)
        yield at, offsets


def _place(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def as_error(operation: str, error: LibraryError, *, deadline_ms: int) -> KafkaError | KafkaTimeoutError:
    code, text = error.code(), error.str()
    if code in _NO_ANSWER:
        return KafkaTimeoutError(operation=operation, deadline_ms=deadline_ms, last_error=f"{error.name()}: {text}")
    kind = UnknownTopicError if code in _NO_TOPIC else AuthorizationError if code in _REFUSED else KafkaError
    return kind(api=operation, code=code, name=error.name(), detail=text)


def _reading(check: BatchCheck, *, committed: bool) -> dict[str, Any]:
    return {
        "group.id": "spark-2pc-verify",  # never joined: partitions are assigned by hand
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # Records that retention removes while they are read must be an error, not a skip.
        "auto.offset.reset": "error",
        "queued.max.messages.kbytes": QUEUED_KBYTES_MAX,
        "queued.min.messages": 50_000,
        # With a full queue librdkafka pauses fetching for this long; its default second is longer than the queue lasts.
        "fetch.queue.backoff.ms": 10,
        # From a partition with large batches only the first batch is sent, and as a whole (KIP-74).
        "fetch.message.max.bytes": 1 if check.dense else _FETCH_BYTES,
        "fetch.max.bytes": _FETCH_ALL_BYTES,
        # It also limits the decompressed size of a batch with zstd, snappy or lz4 in librdkafka.
        "receive.message.max.bytes": check.bytes_max,
        # How long a broker delays the answer at the end of a log.
        "fetch.wait.max.ms": 10,
    }


def client_settings(options: KafkaOptions) -> dict[str, Any]:
    """librdkafka's configuration for the same brokers and login; tokens are from the sink's own source."""
    source, installed = token_source(options), version("confluent-kafka")
    if options.sasl_mechanism == "GSSAPI":
        try:
            # A library without Kerberos reports that only to a client.
            AdminClient({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"})
        except KafkaException as error:
            library = f"topics are read by confluent-kafka {installed}, whose librdkafka {libversion()[0]}"
            rule = f"{library} was built without Kerberos, like that of its wheels"
            remedy = (
                "run verify with a --command-config that has another login, or build librdkafka with libsasl2 and "
                "confluent-kafka from source (pip install --no-binary confluent-kafka)"
            )
            raise refused("sasl.mechanism", "GSSAPI", rule, remedy) from error
    # Earlier clients get a token only in calls of ``poll``, which an admin client never makes.
    if source is not None and tuple(int(part) for part in installed.split(".")[:2]) < (2, 13):
        rule = f"topics are read by confluent-kafka; version {installed} is installed, and tokens require 2.13"
        raise refused("sasl.mechanism", "OAUTHBEARER", rule, "pip install 'confluent-kafka>=2.13'")
    settings: dict[str, Any] = {name: getattr(options, name.replace(".", "_")) for name in _SAME_SETTINGS} | {
        "bootstrap.servers": ",".join(options.bootstrap_servers),
        "client.id": f"{options.client_id}-verify",
        "socket.timeout.ms": max(options.request_timeout_ms, 10),
        "socket.connection.setup.timeout.ms": max(options.socket_connection_setup_timeout_ms, 1_000),
        "sasl.kerberos.service.name": options.kerberos_service_name,
        "oauth_cb": None if source is None else confluent_callback(source),
        # If the certificate's file has the key too, librdkafka must be configured so.
        "ssl.key.location": options.ssl_key_location or options.ssl_certificate_location,
        "ssl.endpoint.identification.algorithm": None if options.ssl_check_hostname else "none",
    }
    return {name: value for name, value in settings.items() if value is not None}
