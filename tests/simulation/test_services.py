"""Every crash: a service is killed, or a request of it fails, at each point of some transactions; and once more after.

This is exhaustive: all points are found by running the script without a fault, and each is tried with each kind of
fault, then each point of the recovery after it. Both sides must have the same transactions at the end, each once, and
what a block has told its caller must be true.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from spark_2pc_sink.errors import DualWriteError
from tests.unit.service.worlds import Fault, KilledError, LostConnectionError, World

BROKERS: dict[str, dict[str, Any]] = {
    "two phase commit": {"two_phase_commit": True},
    "stock": {"two_phase_commit": False},
    "transaction.version 0": {"two_phase_commit": False, "transaction_version": 0},
}
BROKERS |= {f"{name}, in background": settings | {"in_background": True} for name, settings in BROKERS.items()}
each_broker = pytest.mark.parametrize("broker", [*BROKERS])


def some_brokers(*names: str) -> pytest.MarkDecorator:
    """Pairs of faults, with these brokers; with the others every night."""
    kinds = [pytest.param(each, marks=() if each in names else pytest.mark.thorough) for each in BROKERS]
    return pytest.mark.parametrize("broker", kinds)


def script(world: World) -> dict[str, bool | None]:
    """A start, then transactions one after the other, the last one rolled back; what each block has told."""
    told: dict[str, bool | None] = {}
    world.writer.recover()
    for name in ("first", "second", "third"):
        told[name] = world.run(name, roll_back=name == "third")
    world.writer.note()
    return told


def survive(world: World, told: dict[str, bool | None]) -> None:
    """After all faults: a start, another transaction, and both sides."""
    world.fault, world.then = Fault(), Fault()
    world.restart(time_out=False)
    world.check()
    assert world.run("last") is True
    world.check()
    for name, outcome in told.items():
        assert outcome is None or (name in world.rows) is outcome, (name, outcome)


@each_broker
def test_a_script_without_faults_ends_with_all_of_it_on_both_sides(broker: str) -> None:
    world = World(**BROKERS[broker])
    assert script(world) == {"first": True, "second": True, "third": False}
    assert world.rows == ["first", "second"]
    assert not world.in_doubt()
    survive(world, {})


def test_an_answer_that_is_there_costs_the_next_block_nothing() -> None:
    """Not even a new pair: the answer has it."""
    world = World(in_background=True)
    world.writer.recover()
    world.kafka.calls.clear()
    for name in ("first", "second"):
        assert world.run(name) is True
    assert "init" not in " ".join(world.kafka.calls)
    assert world.in_doubt()
    before = world.writer.unnoted_s
    world.writer.note()
    assert (before, world.writer.unnoted_s) == (0.0, None)
    assert not world.in_doubt()


def points_of(broker: str) -> int:
    world = World(**BROKERS[broker])
    script(world)
    return world.points


def test_a_decision_that_could_not_be_written_leaves_the_note_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Kafka has answered need not be read from its logs, which may be gone by then, or nobody's to read."""
    world = World()
    world.writer.recover()
    assert world.run("first") is True
    with monkeypatch.context() as patch:
        for what, owner in (("find_marker", world.kafka), ("decide_within", world.store)):
            patch.setattr(owner, what, failing)
        with pytest.raises(LostConnectionError):
            world.run("second")
    assert not world.writer.unsettled
    assert world.run("third") is True
    world.check()


def failing(*_: object, **__: object) -> None:
    raise LostConnectionError


@some_brokers("stock", "two phase commit, in background")
@pytest.mark.parametrize("time_out", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_kill_at_any_point_and_one_at_any_point_of_the_recovery(broker: str, time_out: bool) -> None:
    for first in range(points_of(broker)):
        for second in count():
            world = World(**BROKERS[broker], fault=Fault(first))
            with pytest.raises(KilledError):
                script(world)
            world.points, world.fault = 0, Fault(second)
            try:
                world.restart(time_out=time_out)
            except KilledError:
                survive(world, {})
                continue
            survive(world, {})
            break


@each_broker
@pytest.mark.parametrize("kind", ["fail", "stall"])
def test_a_request_that_fails_at_any_point_while_the_process_goes_on(broker: str, kind: str) -> None:
    for at in range(points_of(broker)):
        world = World(**BROKERS[broker], fault=Fault(at, kind))
        told: dict[str, bool | None] = {}
        try:
            told = script(world)
        except DualWriteError:
            # At the start, or in the last note: no block has told anything.
            world.restart(time_out=False)
        survive(world, told)


@some_brokers("two phase commit")
def test_a_failure_and_then_a_kill_at_any_later_point(broker: str) -> None:
    for at in range(points_of(broker)):
        for later in count(1):
            world = World(**BROKERS[broker], fault=Fault(at, "fail"), then=Fault(at + later))
            try:
                script(world)
            except KilledError:
                survive(world, {})
                continue
            except DualWriteError:
                pass
            survive(world, {})
            break


def test_without_kept_records_what_kafka_has_aborted_is_lost() -> None:
    """The counter-example by which the records are kept: a stock broker aborts what lasts too long."""
    world = World()
    world.store.never_kept = True
    world.writer.recover()
    world.fault = Fault(world.points + 3)  # after COMMIT: produce has two points, COMMIT one before it
    with pytest.raises(KilledError):
        world.run("lost")
    assert world.rows == ["lost"]
    with pytest.raises(DualWriteError, match="has not kept its records"):
        world.restart(time_out=True)
    assert not world.committed()
