"""Batches that become gigabytes: what they cost coordinator and readers, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.storage.batches import build_batch, encode_key_values
from spark_2pc_sink.testing import ReferenceCoordinator
from spark_2pc_sink.wire.record_batch import Compression, compress
from tests.conformance.raw_client import RawClient, code_of
from tests.harness.bombs import BOMBS, bomb, cut_off

#: Two decoders, each with 64 MiB in pieces, once more in one piece, and once more as the value of a record.
GROWTH_MIB_MAX = 420
#: The loop decodes nothing itself. It shares the interpreter with the decoders, and the machine with others.
ANSWER_S_MAX = 2.0
READER_DEADLINE_S = 120
MIB = 1024 * 1024
TOPIC = "compacted"
CORRUPT = "KafkaError: the batch at offset 0 of plain-0, "
TOO_LARGE = "data cannot be read: it decompresses to more than 100000000 bytes; kafka-dump-log.sh shows its producer"
#: What verify takes to find a batch that it refuses: a Fetch, and one piece of what the batch becomes.
REFUSAL_MIB_MAX = 64


@pytest.fixture
def broker() -> Iterator[ReferenceCoordinator]:
    with ReferenceCoordinator() as running:
        running.create_topic(TOPIC, config={"cleanup.policy": "compact"})
        yield running


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had since `forget_peak` (proc(5), VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def forget_peak(pid: int) -> None:
    """What it has now is the most that it has had (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def load_decoders(client: RawClient) -> None:
    """The libraries themselves are no part of what a batch costs."""
    section = pa.py_buffer(encode_key_values([(b"k", b"v")]))
    for codec in list(Compression)[1:]:
        small = build_batch(
            bytes(compress(section, codec)),
            record_count=1,
            timestamp_ms=int(time.time() * 1000),
            attributes=codec.value,
        )
        assert code_of(client, small, TOPIC) == Code.NONE


def slowest_answer_s(client: RawClient, threads: list[threading.Thread]) -> float:
    """Of those to another connection, until the threads have ended."""
    slowest_s = 0.0
    while any(thread.is_alive() for thread in threads):
        began_s = time.monotonic()
        client.call(ApiVersionsRequest(client_software_name="other", client_software_version="1"), 3)
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        time.sleep(0.01)
    return slowest_s


def test_bombs_of_several_clients_take_little_memory_and_hold_up_nobody_else(broker: ReferenceCoordinator) -> None:
    """D13."""
    senders, names = 2, ("4 GB of zstd", "30 million headers of one record")
    batches = {name: bomb(name) for name in names}
    codes: dict[str, set[int]] = {name: set() for name in names}

    def send(first: int) -> None:
        with RawClient(broker.bootstrap) as client:
            for name in names[first:] + names[:first]:
                codes[name].add(code_of(client, batches[name], TOPIC))

    with RawClient(broker.bootstrap) as other:
        load_decoders(other)
        forget_peak(broker.pid)
        before = peak_bytes(broker.pid)
        threads = [threading.Thread(target=send, args=(number * len(names) // senders,)) for number in range(senders)]
        for thread in threads:
            thread.start()
        slowest_s = slowest_answer_s(other, threads)
        growth_mib = (peak_bytes(broker.pid) - before) // MIB
    assert codes == {name: {Code.INVALID_RECORD} for name in names}
    assert growth_mib < GROWTH_MIB_MAX
    assert slowest_s < ANSWER_S_MAX


def read(
    reader: str, broker: ReferenceCoordinator, batches: Iterable[bytes], others: Iterable[bytes] = ()
) -> tuple[str, int]:
    """How a reader ended that met these in partition 0 and others in 1, and by how many MiB it has grown."""
    topic = broker.create_topic("plain", partitions=2, config={"retention.ms": "-1"})
    with RawClient(broker.bootstrap) as client:
        for partition, each in enumerate((batches, others)):
            for batch in each:
                assert code_of(client, batch, topic, partition=partition) == Code.NONE
    command = [sys.executable, "-m", "tests.harness.bombs", reader, broker.bootstrap, topic]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=READER_DEADLINE_S)
    found = json.loads(done.stdout)
    return found["outcome"], found["growth_mib"]


def test_the_reader_of_logs_looks_into_no_data(broker: ReferenceCoordinator) -> None:
    """D13."""
    outcome, growth_mib = read("log", broker, map(bomb, BOMBS))
    assert outcome == "MISSING"
    # One Fetch is what it holds.
    assert growth_mib < 32


@pytest.mark.thorough
def test_end_markers_that_grow_are_refused(broker: ReferenceCoordinator) -> None:
    """D13: of a broker that means harm; nobody else can write control batches."""
    outcome, growth_mib = read("markers", broker, [])
    assert outcome == f"{len(BOMBS)} of {len(BOMBS)} refused"
    assert growth_mib < GROWTH_MIB_MAX


def test_verify_refuses_what_grows_before_it_has(broker: ReferenceCoordinator) -> None:
    """D13: librdkafka, which decompresses, does not meet it; it has no bound for gzip."""
    batch = bomb("900 MB of gzip")
    outcome, growth_mib = read("verify", broker, [batch])
    assert outcome.startswith(f"{CORRUPT}{len(batch)} bytes: its GZIP {TOO_LARGE}")
    assert growth_mib < REFUSAL_MIB_MAX


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("one value of 60 MB", 20, "20 records"),
        ("a million records at one offset", 1, "KafkaError: 10000 records of plain-0 have offsets 0 to 0: "),
    ],
)
def test_verify_holds_little_of_what_is_large(broker: ReferenceCoordinator, name: str, count: int, said: str) -> None:
    """D13: also of batches that come together and become gigabytes, where each alone is in order."""
    outcome, growth_mib = read("verify", broker, [bomb(name)] * count)
    assert outcome.startswith(said)
    assert growth_mib < GROWTH_MIB_MAX


@pytest.mark.thorough
def test_a_batch_that_comes_when_its_partition_is_read_is_left_alone(broker: ReferenceCoordinator) -> None:
    """D13: nobody has looked at it, and librdkafka, which would not survive it, does not ask for it."""
    small = bomb("a million headers of one record")
    outcome, _ = read("late", broker, [small], [bomb("one value of 60 MB")] * 30)
    assert outcome == "True that records came afterwards"


def test_a_batch_that_is_cut_off_is_refused_where_batches_are_looked_into(broker: ReferenceCoordinator) -> None:
    """D13: Kafka looks into all that are compressed, and answers UNKNOWN_SERVER_ERROR."""
    with RawClient(broker.bootstrap) as client:
        codes = {codec.name: code_of(client, cut_off(codec), TOPIC) for codec in list(Compression)[1:]}
    assert codes == dict.fromkeys(codes, Code.INVALID_RECORD)


@pytest.mark.parametrize(
    ("codec", "left_bytes"),
    [
        # librdkafka 2.16 ends the process at the first, and never ends with the second.
        (Compression.LZ4, 100),
        (Compression.GZIP, None),
    ],
)
def test_verify_names_a_batch_that_is_cut_off(
    broker: ReferenceCoordinator, codec: Compression, left_bytes: int | None
) -> None:
    """D13: librdkafka does not meet it."""
    batch = cut_off(codec, left_bytes=left_bytes)
    outcome, growth_mib = read("verify", broker, [batch])
    assert outcome.startswith(f"{CORRUPT}{len(batch)} bytes: its {codec.name} data cannot be read: ")
    assert growth_mib < REFUSAL_MIB_MAX
