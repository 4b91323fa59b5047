"""A reader of one partition with bombs in it, in a process of its own, which says how it ended and what it took.

Arguments: the reader (``log``, ``markers``, ``verify`` or ``late``), bootstrap address, topic. Prints JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import DualWriteError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.log_reader import find_marker
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.verification.topic_reader import TopicReader
from spark_2pc_sink.wire.batch_reader import decode_record_batches
from spark_2pc_sink.wire.record_batch import Compression
from tests.conformance.raw_client import RawClient, code_of
from tests.harness.bombs import BOMBS, bomb, cut_off

#: Of each request; a hundred times of what one takes.
_DEADLINE_MS: Final = 8_000


def _read_log(options: KafkaOptions, partition: TopicPartition) -> str:
    """Look for the end of a transaction that is not there: the whole log is read."""
    with Cluster(options) as cluster:
        epochs = frozenset({0})
        deadline = cluster.deadline()
        return find_marker(cluster, partition, from_offset=0, producer_id=7, epochs=epochs, deadline=deadline).name


def _read_markers(_options: KafkaOptions, _partition: TopicPartition) -> str:
    """Look into control batches, which brokers write alone: so these come from no broker."""
    batches = [batch for name in BOMBS for batch in decode_record_batches(bomb(name, control=True))]
    refused = 0
    for batch in batches:
        try:
            assert batch.marker is None
        except RemoteProtocolError:
            refused += 1
    return f"{refused} of {len(batches)} refused"


def _verify(options: KafkaOptions, partition: TopicPartition) -> str:
    """Read every record."""
    reader = TopicReader(options)
    bounds = {partition: (0, reader.describe([partition.topic]).ends[partition])}
    return f"{sum(len(records) for _, records in reader.read(bounds))} records"


def _late(options: KafkaOptions, partition: TopicPartition) -> str:
    """Read two partitions, and put a batch behind the end of the one while the other is being read."""
    reader = TopicReader(options)
    ends = reader.describe([partition.topic]).ends
    bounds = {at: (0, ends[at]) for at in (partition, TopicPartition(partition.topic, 1))}
    read, late = 0, False
    for at, records in reader.read(bounds):
        if at == partition:
            with RawClient(options.bootstrap_servers[0]) as client:
                late = code_of(client, cut_off(Compression.LZ4, left_bytes=100), partition.topic) == Code.NONE
        else:
            read += len(records) if late else 0
    return f"{read > 0} that records came afterwards"


_READERS: Final[dict[str, Callable[[KafkaOptions, TopicPartition], str]]] = {
    "log": _read_log,
    "markers": _read_markers,
    "verify": _verify,
    "late": _late,
}


def peak_mib() -> int:
    """By proc(5): what getrusage(2) says begins with the peak of the process that this one was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024


def main(reader: str, bootstrap: str, topic: str) -> None:
    """Read, and print the outcome and by how many MiB the process has grown."""
    options = KafkaOptions.parse({"bootstrap.servers": bootstrap, "max.block.ms": str(_DEADLINE_MS)})
    before = peak_mib()
    try:
        outcome = _READERS[reader](options, TopicPartition(topic, 0))
    except DualWriteError as error:
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps({"outcome": outcome, "growth_mib": peak_mib() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
