"""Batches in logs of real Kafka that librdkafka would not survive: verify names them, and takes no memory for them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from spark_2pc_sink.codes import Code
from tests.conformance.raw_client import RawClient, code_of
from tests.harness.bombs import bomb
from tests.harness.json_contract import read_output
from tests.harness.written_pair import TABLE, WrittenPair, rows_of
from tests.integration.verification.conftest import MakePair

DEADLINE_S = 120
#: Beyond what the command takes for a pair in order.
GROWTH_MIB_MAX = 64
NOT_CHECKED = 5
#: A command of ``spark-2pc``, which says last on standard error what memory its process took.
_COMMAND = (
    "import sys; from spark_2pc_sink import cli; from tests.harness.bombs import peak_mib; "
    "code = cli.main(sys.argv[1:]); print(peak_mib(), file=sys.stderr); sys.exit(code)"
)


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, why it has not checked, and its peak of memory."""

    code: int
    why: str
    peak_mib: int


def verify(pair: WrittenPair) -> Ended:
    """``spark-2pc verify`` of a pair, in a process of its own."""
    sides = ["--bootstrap-server", pair.broker.bootstrap, "--database", pair.database]
    words = [*sides, "--transactional-id", pair.transactional_id, "--table", TABLE, "--mode", "append", "--json"]
    command = [sys.executable, "-c", _COMMAND, "verify", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode >= 0, f"a signal ended it: {done.returncode}, {done.stderr}"
    parts = read_output(done.stdout)["not_checked"]
    why = next((part["why"] for part in parts if part["what"] == "the rest"), "")
    return Ended(done.returncode, why, int(done.stderr.split()[-1]))


def test_a_batch_of_a_megabyte_that_becomes_one_gigabyte(make_pair: MakePair) -> None:
    """D13: Kafka takes it, as its one record is in order; librdkafka has no bound for gzip."""
    pair = make_pair(upsert=False)
    pair.write(rows_of(0))
    usual = verify(pair)
    assert (usual.code, usual.why) == (0, "")
    batch = bomb("one value of 900 MB of gzip")
    offset = pair.offsets(0)[0][1] + 2
    with RawClient(pair.broker.bootstrap) as client:
        assert code_of(client, batch, pair.topic) == Code.NONE
    found = verify(pair)
    assert found.code == NOT_CHECKED
    assert (
        f"the batch at offset {offset} of {pair.topic}-0, {len(batch)} bytes: its GZIP data cannot be read: it "
        "decompresses to more than 100000000 bytes; kafka-dump-log.sh shows its producer"
    ) in found.why
    assert found.peak_mib - usual.peak_mib < GROWTH_MIB_MAX
