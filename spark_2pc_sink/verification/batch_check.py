"""Checks by the sink's own connections beforehand: batches that would crash librdkafka, and refused logins.

librdkafka decompresses a batch before its size is known. It has a limit for zstd, snappy and lz4, and none for gzip.
An lz4 batch that ends within its first block crashes the process, and a gzip batch that is cut off is read forever. So
the same stretch of each log is first read by the sink's own connections, and decompressed in pieces that are counted
and discarded: for a million records a tenth of a second, where librdkafka takes more than one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.leader_lookup import end_offsets
from spark_2pc_sink.kafka.log_reader import fetch_logs
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.wire.batch_reader import DecodedBatch, decode_record_batches, decompressed_pieces
from spark_2pc_sink.wire.messages import OffsetSpec
from spark_2pc_sink.wire.record_batch import Compression

_REMEDY: Final = (
    "kafka-dump-log.sh shows who wrote it, --since leaves out what is older than a batch of the sink, and "
    "receive.message.max.bytes is what a batch may become"
)
_LOGIN_MS_MAX: Final = 3_000


@dataclass
class _Scan:
    """The walk through one log: its start, current, required and end offsets.

    ``newest`` has the bytes of the newest batches, as many as are read at once, and their plain size; then the sums.
    """

    begin: int
    position: int
    end: int
    log_end: int
    ahead_bytes: int = 0
    newest: deque[tuple[int, int]] = field(default_factory=deque)
    newest_bytes: int = 0
    newest_plain_bytes: int = 0

    def note(self, batch: DecodedBatch, plain_bytes: int, *, together_bytes: int) -> int:
        """Pass a batch; the plain size of all that are read at once with it, 0 for one alone."""
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


class BatchCheck:
    """Checks batches before librdkafka reads them, each once.

    Args:
        options: how to reach the brokers. A request may take ``max_block_ms``.
        bytes_max: limit of a batch's decompressed size.
        together_bytes: bytes of the batches that librdkafka reads from one log at once.
        ahead_bytes: how far librdkafka may read past the requested end. Later records there are not checked.

    Attributes:
        dense: whether batches that are read at once become more than one alone may.
    """

    def __init__(self, options: KafkaOptions, *, bytes_max: int, together_bytes: int, ahead_bytes: int) -> None:
        self._options = options
        self._bytes_max = bytes_max
        self._together_bytes = together_bytes
        self._ahead_bytes = ahead_bytes
        self._seen: dict[TopicPartition, _Scan] = {}
        self.dense: bool = False

    def has_seen(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the batch at an offset was checked, or no longer exists."""
        seen = self._seen.get(partition)
        return seen is not None and seen.begin <= offset < seen.position

    def check(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Check these stretches of logs, as far as they exist, and the batches that already follow them.

        Raises:
            KafkaError: a batch cannot be decompressed or becomes too large; or the brokers refused.
            KafkaTimeoutError, UnknownTopicError: the brokers did not answer, or do not know a topic.
        """
        if not bounds:
            return
        with Cluster(self._options) as cluster:
            deadline, answered = cluster.deadline(), False
            starts = end_offsets(cluster, bounds, OffsetSpec.EARLIEST, deadline)
            log_ends = end_offsets(cluster, bounds, OffsetSpec.LATEST, deadline)
            # Nothing exists before the beginning of a log: that counts as checked.
            walks = {at: _Scan(start, max(start, starts[at]), end, log_ends[at]) for at, (start, end) in bounds.items()}
            deadline = cluster.deadline()
            while open_ := {at: walk.position for at, walk in walks.items() if not self._is_over(at, walk)}:
                if deadline.passed:
                    why = f"no record came of {', '.join(map(str, open_))}"
                    raise KafkaTimeoutError(operation="Fetch", deadline_ms=deadline.limit_ms, last_error=why)
                try:
                    found = fetch_logs(cluster, open_, deadline)
                except KafkaTimeoutError:
                    # A request that was cut short by the deadline tells less than the answers before it.
                    if not answered:
                        raise
                    continue
                answered = True
                for at, data in found.items():
                    self._check(at, walks[at], data)
                if any(walks[at].position > position for at, position in open_.items()):
                    # It gives up only after that time without an answer.
                    deadline, answered = cluster.deadline(), False
                else:
                    deadline.pause()

    def _is_over(self, partition: TopicPartition, walk: _Scan) -> bool:
        """Whether a walk is over; stretches checked by an earlier one are skipped, and both are merged."""
        seen = self._seen.get(partition)
        if seen is not None and seen is not walk and seen.begin <= walk.position <= seen.position:
            walk.begin, walk.position, walk.newest = min(walk.begin, seen.begin), seen.position, seen.newest
            walk.newest_bytes, walk.newest_plain_bytes = seen.newest_bytes, seen.newest_plain_bytes
            if walk.end <= seen.end:
                walk.ahead_bytes = seen.ahead_bytes
        over = walk.position >= walk.log_end or (walk.position >= walk.end and walk.ahead_bytes >= self._ahead_bytes)
        if over:
            self._seen[partition] = walk
        return over

    def _check(self, partition: TopicPartition, walk: _Scan, data: bytes) -> None:
        what = str(partition)
        try:
            for batch in decode_record_batches(data):
                what = f"the batch at offset {batch.base_offset} of {partition}, {batch.size_bytes} bytes"
                codec, plain_bytes = Compression(batch.compression), len(batch.payload)
                if codec is not Compression.NONE:
                    plain_bytes = sum(map(len, decompressed_pieces(batch.payload, codec, bytes_max=self._bytes_max)))
                self.dense |= walk.note(batch, plain_bytes, together_bytes=self._together_bytes) > self._bytes_max
                what = str(partition)
        except RemoteProtocolError as error:
            code = Code.CORRUPT_MESSAGE
            detail = f"{what}: {error.detail}; {_REMEDY}"
            raise KafkaError(api="Fetch", code=code, name=code.name, detail=detail) from error


def check_login(options: KafkaOptions) -> None:
    """Return if the brokers accept the login, or do not answer.

    librdkafka retries with a refused certificate or password until its deadline, and then reports that there was no
    answer.

    Raises:
        AuthorizationError: the credentials or a certificate were refused, or the security protocol is another one.
    """
    bounded = replace(options, max_block_ms=min(options.max_block_ms, _LOGIN_MS_MAX))
    with Cluster(bounded) as cluster:
        try:
            cluster.features()
        except KafkaTimeoutError:
            # They may still answer: the caller continues to wait, and has its own error.
            return
