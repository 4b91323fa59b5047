"""Resending by itself: what halts it. That it ends with both sides the same is shown in tests/unit/service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jdbc_state import KeptRecords
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import BatchRetryError, HaltCause, HaltError
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer
from spark_2pc_sink.recovery.recovery import Recovered, kept_for, resend
from tests.unit.service.worlds import ID, Fault, KilledError, World


@pytest.fixture
def owed() -> tuple[World, Recovered]:
    """A service whose transaction Kafka has aborted after the decision, recovered and not resent."""
    world = World()
    world.writer.recover()
    world.fault = Fault(world.points + 3)
    with pytest.raises(KilledError):
        world.run("owed")
    world.dead = False
    world.kafka.time_out()
    return world, world.new_recovery().run(query_id=None, run_id=None)


def send(world: World, recovered: Recovered) -> Recovered:
    return resend(recovered, kafka=world.kafka, store=world.store, send=world.kafka.send)


def test_what_is_owed_is_sent_and_noted(owed: tuple[World, Recovered]) -> None:
    world, recovered = owed
    assert kept_for(world.store, recovered.row) == world.store.kept[ID]
    done = send(world, recovered)
    assert (done.row.status, done.report.settled, done.report.remedies) == ("done", True, ())
    assert [action.kind for action in done.report.actions] == ["note_owed", "resend"]
    assert kept_for(world.store, done.row) is None
    world.check()


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (None, "has not kept its records"),
        ({"batch_id": 7}, "has not kept its records"),
        ({"batches": b"?"}, "cannot be read"),
        ({"partitions": (), "batches": b""}, "has 1 records, and 0 are kept"),
    ],
)
def test_what_is_not_the_batch_is_not_sent(
    owed: tuple[World, Recovered], kept: dict[str, Any] | None, reason: str
) -> None:
    world, recovered = owed
    found = world.store.kept.pop(ID)
    if kept is not None:
        world.store.kept[ID] = replace(found, **kept)
    with pytest.raises(HaltError, match=reason) as caught:
        send(world, recovered)
    assert caught.value.cause is HaltCause.RESEND_DIFFERS
    assert any("--drop" in remedy for remedy in caught.value.remedies)
    assert isinstance(found, KeptRecords)
    assert not world.committed()


def test_a_broker_that_aborts_again_leaves_it_decided(
    owed: tuple[World, Recovered], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, recovered = owed
    refusal = EndTxnAnswer(Code.INVALID_TXN_STATE, "INVALID_TXN_STATE", None)
    with monkeypatch.context() as patch:
        patch.setattr(world.kafka, "end", lambda *_, **__: refusal)
        with pytest.raises(BatchRetryError, match=r"INVALID_TXN_STATE.*timed out, or another writer"):
            send(world, recovered)
    assert world.in_doubt()
    world.restart(time_out=True)
    world.check()
