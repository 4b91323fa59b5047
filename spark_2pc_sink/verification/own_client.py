"""What the sink's own client asks Kafka: for batches that would crash librdkafka, refused logins, the open transaction.

librdkafka decompresses a batch before its size is known. It has a limit for zstd, snappy and lz4, and none for gzip.
An lz4 batch that ends within its first block crashes the process, and a truncated gzip batch is read forever. So the
same range of each log is first read by the sink's own connections, and decompressed in pieces that are counted and
discarded: for a million records a tenth of a second, where librdkafka takes more than one.

The coordinator is queried about the open transaction as in recovery.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.clock import Deadline, SystemClock
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition, TransactionState
from spark_2pc_sink.kafka.cluster import Cluster, end_offsets
from spark_2pc_sink.kafka.log_reader import fetch_logs
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.recovery.diagnosis import began_at
from spark_2pc_sink.verification.history import Ranges
from spark_2pc_sink.wire.batch_reader import DecodedBatch, decode_record_batches, decompressed_pieces
from spark_2pc_sink.wire.messages import OffsetSpec
from spark_2pc_sink.wire.record_batch import Compression

if TYPE_CHECKING:
    from spark_2pc_sink.verification.verification import Evidence

_REMEDY: Final = (
    "kafka-dump-log.sh shows its producer, --since excludes records older than a batch of the sink, and "
    "receive.message.max.bytes is the limit for a batch"
)
_LOGIN_MS_MAX: Final = 3_000


@dataclass
class _Scan:
    """The checked part of one log, from ``begin`` to ``position``, and the offset that must be reached.

    ``newest`` has the bytes of the newest batches, as many as are read at once, and their plain size; then the sums.
    """

    begin: int
    position: int
    end: int
    ahead_bytes: int = 0
    newest: deque[tuple[int, int]] = field(default_factory=deque)
    newest_bytes: int = 0
    newest_plain_bytes: int = 0

    def note(self, batch: DecodedBatch, plain_bytes: int, *, together_bytes: int) -> int:
        """Note a checked batch; the plain size of all that are read at once with it, 0 for one alone."""
        self.position = batch.last_offset + 1
        self.ahead_bytes += batch.size_bytes if batch.base_offset >= self.end else 0
        self.newest.append((batch.size_bytes, plain_bytes))
        self.newest_bytes += batch.size_bytes
        self.newest_plain_bytes += plain_bytes
        while self.newest_bytes > together_bytes and len(self.newest) > 1:
            gone_bytes, gone_plain_bytes = self.newest.popleft()
            self.newest_bytes -= gone_bytes
            self.newest_plain_bytes -= gone_plain_bytes
        return self.newest_plain_bytes if len(self.newest) > 1 else 0


@dataclass(kw_only=True)
class BatchCheck:
    #: How to reach the brokers. A request may take ``max_block_ms``.
    options: KafkaOptions
    #: Limit of a batch's decompressed size.
    bytes_max: int
    #: Bytes of the batches that librdkafka reads from one log at once.
    together_bytes: int
    #: How far librdkafka may read past the requested end. Later records there are not checked.
    ahead_bytes: int
    #: Whether batches that are read at once become more than one alone may.
    dense: bool = False
    _seen: dict[TopicPartition, _Scan] = field(default_factory=dict)

    def has_seen(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the batch at an offset was checked, or no longer exists."""
        seen = self._seen.get(partition)
        return seen is not None and seen.begin <= offset < seen.position

    def check(self, bounds: Ranges) -> None:
        """Check these offset ranges, and batches that follow; KafkaError for one that is broken or too large."""
        with Cluster(self.options) as cluster:
            deadline, answered = cluster.deadline(), False
            starts = end_offsets(cluster, bounds, OffsetSpec.EARLIEST, deadline)
            log_ends = end_offsets(cluster, bounds, OffsetSpec.LATEST, deadline)
            for at, (start, end) in bounds.items():
                seen = self._seen.get(at)
                if seen is None or not seen.begin <= start <= seen.position:
                    # Offsets before the beginning of a log do not exist, and count as checked.
                    self._seen[at] = _Scan(start, max(start, starts[at]), end)
                elif end > seen.end:
                    seen.end, seen.ahead_bytes = end, 0
            scans, deadline = {at: self._seen[at] for at in bounds}, cluster.deadline()
            while open_ := {
                at: scan.position
                for at, scan in scans.items()
                if scan.position < log_ends[at] and (scan.position < scan.end or scan.ahead_bytes < self.ahead_bytes)
            }:
                if deadline.passed:
                    why = f"no record arrived of {', '.join(map(str, open_))}"
                    raise KafkaTimeoutError(operation="Fetch", deadline_ms=deadline.limit_ms, last_error=why)
                try:
                    found = fetch_logs(cluster, open_, deadline)
                except KafkaTimeoutError:
                    # A request that was cut short by the deadline is less informative than the answers before it.
                    if not answered:
                        raise
                    continue
                answered = True
                for at, data in found.items():
                    self._check_batches(at, data)
                if any(scans[at].position > position for at, position in open_.items()):
                    # The time limit is for progress, not for all.
                    deadline, answered = cluster.deadline(), False
                else:
                    deadline.pause()

    def _check_batches(self, partition: TopicPartition, data: bytes) -> None:
        what = str(partition)
        try:
            for batch in decode_record_batches(data):
                what = f"the batch at offset {batch.base_offset} of {partition}, {batch.size_bytes} bytes"
                codec, plain_bytes = Compression(batch.compression), len(batch.payload)
                if codec is not Compression.NONE:
                    plain_bytes = sum(map(len, decompressed_pieces(batch.payload, codec, bytes_max=self.bytes_max)))
                together = self._seen[partition].note(batch, plain_bytes, together_bytes=self.together_bytes)
                self.dense |= together > self.bytes_max
                what = str(partition)
        except RemoteProtocolError as error:
            code, detail = Code.CORRUPT_MESSAGE, f"{what}: {error.detail}; {_REMEDY}"
            raise KafkaError(api="Fetch", code=code, name=code.name, detail=detail) from error


def check_login(options: KafkaOptions) -> None:
    """Raise AuthorizationError if the brokers refuse the login, which librdkafka retries, and reports as no answer."""
    bounded = replace(options, max_block_ms=min(options.max_block_ms, _LOGIN_MS_MAX))
    # They may still answer after a timeout: the caller continues to wait, and has its own error.
    with Cluster(bounded) as cluster, suppress(KafkaTimeoutError):
        cluster.features()


def find_open_records(evidence: Evidence) -> Ranges | None:
    """First and last offset of the open transaction's records in each partition; None if there is none."""
    options = evidence.request.options
    with Cluster(options.kafka) as cluster:
        client = TransactionClient(cluster, options.transactional_id, options.kafka)
        described = client.describe()
        if described.state != TransactionState.ONGOING:
            why = f"Kafka has none for this id; the state is {described.state}"
            evidence.differences.skip("the open transaction", why, "leave out --open to compare committed records")
            return None
        row = evidence.row
        if row is not None and row.prepared_transaction_state == str(described.producer) and row.kafka_offsets:
            return {TopicPartition.parse(name): at for name, at in row.kafka_offsets.items()}
        began = began_at(client, Deadline(SystemClock(), options.settle_deadline_ms))
    for partition, at in began.items():
        if isinstance(at, str) and at != "no record yet":
            evidence.differences.skip(f"records of {partition}", at)
    written = evidence.reader.describe({partition.topic for partition in began}).written
    why = "after its first record, they cannot be distinguished from records of other producers"
    evidence.differences.skip("which producer wrote the records", why)
    return {at: (first, written[at] - 1) for at, first in began.items() if isinstance(first, int)}
