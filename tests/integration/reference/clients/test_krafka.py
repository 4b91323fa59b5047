"""krafka, a Kafka client in Rust with two-phase commit (KIP-939), on the reference coordinator: code that is not ours.

It wants transaction.version 3, and ends a prepared transaction with that transaction's own pair. So it goes with the
form of apache/kafka#22704: with #21735 that pair is fenced by keeping the transaction.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.testing import ReferenceCoordinator, read_topic

pytestmark = [pytest.mark.thorough, pytest.mark.kafka, pytest.mark.timeout(1_800)]
PROGRAM: Final = Path(__file__).parent / "krafka"
TARGET: Final = Path(__file__).parents[4] / ".cache" / "krafka"
TOPIC, TRANSACTIONAL_ID = "orders", "orders"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> Path:
    """The program, built from the registry of crates; skipped where that cannot be, also in continuous integration."""
    if shutil.which("cargo") is None:
        pytest.skip("krafka needs cargo, with Rust 1.95 or later")
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET)}
    done = subprocess.run(
        ["cargo", "build", "--quiet"], cwd=PROGRAM, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"krafka could not be built: {done.stderr[-500:]}")
    return TARGET / "debug" / "krafka-interop"


@pytest.fixture(params=["unchanged", "bump"])
def coordinator(request: pytest.FixtureRequest) -> Iterator[ReferenceCoordinator]:
    """One that keeps prepared transactions from level 3 on, in each form."""
    forms = {"transaction.keep.prepared.version": "3", "transaction.keep.prepared.form": request.param}
    with ReferenceCoordinator(transaction_version=3, properties=forms) as running:
        running.create_topic(TOPIC, partitions=1)
        yield running


@pytest.fixture
def run(program: Path, coordinator: ReferenceCoordinator) -> Run:
    """Run the program: what it does, and a state."""

    def run(what: str, *state: str) -> subprocess.CompletedProcess[str]:
        words = [str(program), what, coordinator.bootstrap, TOPIC, TRANSACTIONAL_ID, *state]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.mark.parametrize("same", [True, False])
def test_what_one_process_prepared_another_completes(coordinator: ReferenceCoordinator, run: Run, same: bool) -> None:
    """With the stored state it is committed, with another one aborted."""
    prepared = run("prepare")
    assert prepared.returncode == 0, prepared.stderr
    state = prepared.stdout.strip()
    assert read_topic(coordinator.bootstrap, TOPIC) == []
    completed = run("complete", state if same else "1:0")
    if coordinator.properties["transaction.keep.prepared.form"] == "bump":
        assert Code.PRODUCER_FENCED.name.replace("_", "") in completed.stderr.replace("_", "").upper(), completed.stderr
        return
    assert completed.stdout.splitlines() == [f'Some("{state}")', "Committed" if same else "Aborted"], completed.stderr
    values = [record.value for record in read_topic(coordinator.bootstrap, TOPIC)]
    assert values == ([b"1", b"2", b"3"] if same else [])
