"""Why nothing comes of a log, as the sink's own reader tells it.

librdkafka says nothing of a batch that grows beyond its bounds, and never ends with gzip that was cut off. Only who has
waited in vain asks here; this module is imported then, for the memory that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from spark_2pc_sink.clock import Deadline
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.cluster import Cluster
from spark_2pc_sink.producer.log_reader import read_log
from spark_2pc_sink.wire.compression import Compression, decompress

_LIMIT_MS: Final = 10_000


def check_batches(options: KafkaOptions, ranges: Mapping[TopicPartition, tuple[int, int]], *, bytes_max: int) -> None:
    """Return where all batches can be decompressed, or that cannot be told in time.

    Args:
        options: how to reach the brokers.
        ranges: by partition the offset at which reading stands still, and the end.
        bytes_max: of one partition; a reader gives out nothing of what it has fetched until it has read all of that.

    Raises:
        KafkaError: a batch that cannot be decompressed.
    """
    bounded = replace(options, max_block_ms=min(options.max_block_ms, _LIMIT_MS))
    with Cluster(bounded) as cluster:
        deadline = cluster.deadline()
        try:
            for partition, (begin, end) in ranges.items():
                _check(cluster, partition, begin, end, bytes_max=bytes_max, deadline=deadline)
        except KafkaTimeoutError:
            # Who called has an error of its own.
            return


def _check(
    cluster: Cluster, partition: TopicPartition, begin: int, end: int, *, bytes_max: int, deadline: Deadline
) -> None:
    seen_bytes = 0
    for batch in read_log(cluster, partition, begin, end, deadline):
        try:
            decompress(batch.payload, Compression(batch.compression))
        except RemoteProtocolError as error:
            raise KafkaError(
                api="Fetch",
                code=Code.CORRUPT_MESSAGE,
                name=Code.CORRUPT_MESSAGE.name,
                detail=f"the batch at offset {batch.base_offset} of {partition}: {error.detail}; look at it with "
                "kafka-dump-log.sh",
            ) from error
        seen_bytes += batch.size_bytes
        if seen_bytes > bytes_max:
            return
