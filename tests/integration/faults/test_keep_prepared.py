"""Recovery where the coordinator keeps prepared transactions (KIP-939, keepPreparedTxn): the reference coordinator.

No released Kafka has it. Everything else of this folder runs on both (``--provider reference``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_2pc_sink import PreparedTxnState
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.recovery.report import Action
from spark_2pc_sink.testing import ReferenceCoordinator
from tests.harness.damage import lose_row
from tests.harness.driver_job import Job
from tests.integration.faults.conftest import MakeJob


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest) -> Iterator[ReferenceCoordinator]:
    """One that keeps a prepared transaction as apache/kafka#21735 does, unless a test asks for #22704's form."""
    with ReferenceCoordinator(properties=getattr(request, "param", {})) as running:
        yield running


@pytest.fixture
def decided(reference: ReferenceCoordinator, make_job: MakeJob) -> Job:
    """A job whose driver died right after the database commit of its second batch."""
    job = make_job(reference)
    job.kill_at("step:DECIDE", batch=1)
    assert job.state("status", "batch_id") == ("decided", 1)
    return job


def prepared_pair(job: Job) -> ProducerIdAndEpoch:
    """The pair of the transaction that the database has decided."""
    producer = PreparedTxnState(job.state("prepared_transaction_state")[0]).producer
    assert producer is not None
    return producer


def settle(job: Job) -> tuple[Action, ...]:
    report = job.recover()
    assert report.settled
    return report.actions


@pytest.mark.parametrize(
    ("reference", "bumps"),
    [({}, 2), ({"transaction.keep.prepared.form": "unchanged"}, 1)],
    indirect=["reference"],
    ids=["bump", "unchanged"],
)
def test_a_decided_transaction_is_taken_over_and_committed(decided: Job, bumps: int) -> None:
    """KIP-939: the pair that ends a kept transaction is a later one, and so is the pair that EndTxn answers.

    With apache/kafka#22704 it is the transaction's own, as without keepPreparedTxn.
    """
    pair = prepared_pair(decided)
    (action,) = settle(decided)
    assert action.kind == "commit"
    assert decided.state("status", "settled") == ("done", f"{pair.producer_id}:{pair.epoch + bumps}")
    decided.ends_well()


def test_each_recovery_that_dies_half_way_fences_the_one_before(decided: Job) -> None:
    """B11, B12, KIP-939: "the epoch is bumped", so that of several recoverers only the last can end the transaction."""
    pair = prepared_pair(decided)
    with decided.coordinator() as client:
        kept = [client.init_producer_id(keep_prepared=True) for _ in range(3)]
        assert [each.ongoing for each in kept] == [PreparedTxnState.of(pair)] * 3
        assert [each.producer.epoch for each in kept] == [pair.epoch + 1, pair.epoch + 2, pair.epoch + 3]
        # Neither the dead driver's pair nor that of an earlier recovery ends anything any more.
        for stale in (pair, kept[0].producer, kept[1].producer):
            assert client.end(stale, commit=False).code == Code.PRODUCER_FENCED
        assert client.describe().producer == pair
    settle(decided)
    decided.ends_well()


def test_row_and_history_are_lost_where_prepared_transactions_are_kept(decided: Job) -> None:
    """C14: no InitProducerId, which would take the transaction over, comes before the person's word."""
    pair = prepared_pair(decided)
    lose_row(decided, history=True)
    decided.refused(HaltCause.OPEN_TRANSACTION, times=2, adopt=True)
    assert (decided.describe().state, decided.describe().producer) == ("Ongoing", pair)
    assert decided.recover(adopt=True, open_transaction="commit", batch=1).settled
    assert decided.ends_well().placements[0] == (1, "SKIP")
