"""Kafka's own tool reads our files: ``kafka-dump-log.sh``, which is ``org.apache.kafka.tools.DumpLogSegments``."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from spark_2pc_sink.reference.coordinator.plans import EndMarker
from spark_2pc_sink.reference.log.partition_log import LogSettings, PartitionLog
from spark_2pc_sink.testing import CapabilityError
from tests.harness.kafka_tools import tool_command
from tests.unit.reference.batches import NOW_MS, append, append_in_transaction, client_batch

pytestmark = pytest.mark.java

DEADLINE_S = 120


@pytest.fixture(scope="module")
def tool() -> list[str]:
    """The command; skips where there is no Java or no tool, which is a failure in CI."""
    try:
        return tool_command("kafka-dump-log.sh")
    except CapabilityError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def dump(tool: list[str], *arguments: str) -> str:
    done = subprocess.run([*tool, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def opened(directory: Path, topic: str, *, segment_bytes: int = 1 << 30, leader_epoch: int = 3) -> PartitionLog:
    settings = LogSettings(segment_bytes=segment_bytes)
    return PartitionLog.open(directory, topic=topic, partition=0, leader_epoch=leader_epoch, settings=settings)


def fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", line))


def batches_in(text: str) -> list[dict[str, str]]:
    return [fields(line) for line in text.splitlines() if line.startswith("baseOffset:")]


async def test_data_a_transaction_and_control_batches(tmp_path: Path, tool: list[str]) -> None:
    log = opened(tmp_path, "orders")
    append(log, client_batch([b"plain", b"too"]))
    append_in_transaction(log, [b"aborted"], producer=(7, 0), sequence=0)
    log.append_marker(EndMarker(7, 1, commit=False, coordinator_epoch=4, transaction_version=2), now_ms=NOW_MS)
    append_in_transaction(log, [b"committed", b"c"], producer=(7, 1), sequence=0)
    log.append_marker(EndMarker(7, 2, commit=True, coordinator_epoch=4, transaction_version=2), now_ms=NOW_MS)
    await log.flush()
    log.close()
    text = dump(tool, "--files", str(tmp_path / "00000000000000000000.log"), "--deep-iteration", "--print-data-log")
    found = batches_in(text)
    assert [(each["baseOffset"], each["lastOffset"], each["isTransactional"], each["isControl"]) for each in found] == [
        ("0", "1", "false", "false"),
        ("2", "2", "true", "false"),
        ("3", "3", "true", "true"),
        ("4", "5", "true", "false"),
        ("6", "6", "true", "true"),
    ]
    assert {(each["isvalid"], each["magic"], each["partitionLeaderEpoch"]) for each in found} == {("true", "2", "3")}
    assert [(each["producerId"], each["producerEpoch"], each["baseSequence"]) for each in found] == [
        ("-1", "-1", "-1"),
        ("7", "0", "0"),
        ("7", "1", "-1"),
        ("7", "1", "0"),
        ("7", "2", "-1"),
    ]
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", text) == [("ABORT", "4"), ("COMMIT", "4")]
    assert re.findall(r"payload: (\w+)", text) == ["plain", "too", "aborted", "committed", "c"]
