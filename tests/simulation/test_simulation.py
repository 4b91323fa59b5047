"""A small part of the simulation: the same every time, able to fail, and with people, neither blind nor false.

``make simulate`` runs the rest, and each act of people at each point; those here are the shortest schedules of what
once ended green and wrong.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from jdbc_state.claim import Claimant
from spark_2pc_sink.errors import CommitUnknownError, HaltCause, StateStoreError
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from tests.simulation import command, faults, people
from tests.simulation.behaviours import Tree, at_random, behaviours, module_of
from tests.simulation.broker import CLUSTER_ID, Record
from tests.simulation.checkers import check, green
from tests.simulation.command import MUTANTS
from tests.simulation.database import SimDatabase
from tests.simulation.drivers import Actor
from tests.simulation.explore import (
    Applied,
    Caught,
    Mutant,
    Tally,
    Violation,
    as_test,
    hunt,
    run_children,
    run_random,
    run_schedule,
    shrink,
    trace,
)
from tests.simulation.schedule import (
    PEOPLE,
    PROFILES,
    PROMISED,
    TABLE_ALONE,
    TOPIC_ALONE,
    Choices,
    RandomChoices,
    Schedule,
)
from tests.simulation.world import KAFKA, TABLE, Ledger, World
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every recovery warns of what it mended."""
    caplog.set_level(logging.CRITICAL, "spark_2pc_sink")


def mutant(name: str) -> Mutant:
    (found,) = (each for each in MUTANTS if each.name == name)
    return found


# --- schedules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROMISED)
def test_without_faults_both_sides_get_everything(profile: str) -> None:
    world = World(profile, Choices(Schedule(profile)))
    world.run()
    assert check(world) == []
    of_profile = PROFILES[profile]
    counts = [sum(each) for each in zip(*of_profile.batches, strict=True)]
    for _, partition, _ in of_profile.bad:
        counts[partition] -= 1
    placed = list(zip(of_profile.outputs, counts, strict=True))
    records = sum(count for output, count in placed if output != TABLE_ALONE)
    rows = sum(count for output, count in placed if output != TOPIC_ALONE)
    assert (len(world.in_kafka()), len(world.database.contents())) == (records, rows)
    assert [driver.outcome for driver in world.drivers] == ["finished"]
    assert world.choices.taken == []


@pytest.mark.parametrize("profile", PROFILES)
def test_every_single_fault_is_survived(profile: str) -> None:
    """Every crash point, every lost or repeated reply, every second driver, and all the rest.

    C5: where the database loses commits, the two sides agree or a driver has halted.
    D11: a batch has all its outputs, or none.
    """
    tally = run_children(Schedule(profile))
    assert tally.schedules > 250
    assert [(str(each.schedule), each.checker, each.text) for each in tally.reported] == []


def test_every_kind_of_fault_is_offered_somewhere() -> None:
    kinds = {value for name, value in vars(faults).items() if name.isupper() and isinstance(value, str)}
    kinds -= {*faults.LOSING, faults.KAFKA, faults.PRODUCE, faults.SQL, faults.COMMIT, faults.SPARK}
    seen: set[str] = set()
    for seed in range(60):
        choices = RandomChoices(Schedule("tv2-drift"), seed, faults_max=3)
        World("tv2-drift", choices).run()
        seen.update(*choices.offered)
    assert seen == kinds | {people.DROP}


def test_a_database_that_lost_a_commit_is_noticed_when_kafka_shows_what_it_lacks() -> None:
    """C5: not promised, but noticed: done beside a commit of another pair halts."""
    world = World("tv2-async", Choices(Schedule("tv2-async", ((28, faults.ASYNC_FAILOVER),))))
    world.run()
    assert world.halts[0].cause is HaltCause.DATABASE_BEHIND
    assert check(world) == []


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ("18:checkpoint-back", "this one is different"),
        ("31:checkpoint-back", "batch 1 follows batch 2"),
        ("31:checkpoint-back@32:checkpoint-back", "batch ids of this query start at 0 again"),
    ],
)
def test_a_checkpoint_that_was_set_back_halts_until_it_is_restored(at: str, reason: str) -> None:
    """A7, D8: the rows that were planned anew would be lost, or those that both sides have be there twice."""
    world = World("tv2", Choices(Schedule.parse(f"tv2@{at}")))
    world.run()
    assert [reason in halted.reason for halted in world.halts] == [True]
    assert world.finished
    assert check(world) == []


def test_a_halt_without_a_lost_commit_is_not_excused() -> None:
    """C5: `tv2-async` excuses nothing by itself; only after a failover that lost commits may a driver halt."""
    halting = next(each for each in MUTANTS if each.name == "no log rule: halts")
    with Applied(replace(halting, profiles=("tv2-async",))):
        tally = run_children(Schedule("tv2-async"), faults.ABORTING)
    assert {each.checker for each in tally.reported} & {"halt", "agreement", "no loss"}


# --- the same again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_what_chance_found_is_found_again(seed: int) -> None:
    """The schedule that a random run took leads to the same requests, choices and outcome."""
    chosen = RandomChoices(Schedule("tv2"), seed, faults_max=6)
    world = World("tv2", chosen, tracing=True)
    world.run()
    lines, violations = trace(Schedule("tv2", tuple(chosen.taken)))
    assert lines == world.traced
    assert violations == check(world)


def test_an_actor_passes_its_error_on() -> None:
    """A defect of the simulation itself must not look like a driver that ended."""

    def fail() -> None:
        message = "broken"
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="broken"):
        Actor(fail).resume()


# --- it can fail -------------------------------------------------------------------------------------------------


def test_each_mutant_is_named_once() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(
    ("name", "checker"),
    [
        ("no owed state: an aborted decision is noted as done", "no loss"),
        ("replay check off by one: a replay runs again", "no duplicate"),
        ("resend without digest check", "agreement"),
        ("no InitProducerId at the end of recovery", None),
    ],
)
def test_a_mutant_is_caught(name: str, checker: str | None) -> None:
    """`make simulate` hunts all of them. None: several checkers can be the first."""
    caught = hunt(mutant(name), seed=1, schedules_max=2_000)
    assert caught.violation is not None
    assert checker in (None, caught.violation.checker)


def test_what_the_sound_product_violates_too_is_not_held_against_a_mutant() -> None:
    nothing = Mutant("nothing is changed", ((World, "trace", lambda original: original),))
    with Applied(nothing) as applied, applied.paused():
        assert not isinstance(World.trace, property)
    assert hunt(nothing, seed=1, schedules_max=50).violation is None


def test_a_mutant_that_does_not_fit_the_code_is_not_caught_but_an_error() -> None:
    """Else a change of the code would make every mutant of it look caught."""
    misfit = Mutant("misfit", ((BatchDriver, "_decide", lambda _original: lambda _self: None),))
    with pytest.raises(AssertionError, match=r"does not fit the code: .*TypeError"):
        hunt(misfit, seed=1, schedules_max=10)


def test_a_violation_is_shown_with_its_trace_and_the_command_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Applied(mutant("replay check off by one: a replay runs again")):
        assert command.main(["--replay", "tv2@16:crash"]) == 1
        command._show(Violation(Schedule.parse("tv2@16:crash"), "no duplicate", ""))
    shown = capsys.readouterr().out
    assert "driver 1: spark-commit 0 <-- crash" in shown
    assert "VIOLATED no duplicate" in shown
    assert "--replay 'tv2@16:crash'" in shown
    assert 'trace(Schedule.parse("tv2@16:crash"))' in shown
    assert command.main(["--replay", "tv2@16:crash"]) == 0
    assert command.main(["--replay", "tv2@16:lose-reply"]) == 2
    assert "cannot run tv2@16:lose-reply: choice point 16 offers crash, " in capsys.readouterr().out


def test_the_last_lines_say_what_was_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No violation, and two mutants, one of which changes nothing: the run fails unless all are caught."""
    caught = Caught("caught", 3, Violation(Schedule("tv2", ((11, "hang"),)), "no duplicate", "…"))
    found = [caught, Caught("not caught", 2_000, None)]
    monkeypatch.setattr(command, "_explore", lambda _options, _pool: Tally(schedules=123))
    monkeypatch.setattr(command, "_hunt", lambda _options, _pool: found)
    assert command.main(["--processes", "1", "--seed", "7"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["schedules=123 violations=0", "mutants=2 caught=1"]


# --- the database ------------------------------------------------------------------------------------------------


def claimant(run_id: str) -> Claimant:
    return Claimant(transactional_id=TRANSACTIONAL_ID, cluster_id=CLUSTER_ID, query_id="query", run_id=run_id)


def test_a_claim_ends_a_commit_that_hangs() -> None:
    """C2: it waits for a COMMIT under way, or defeats it; a plain read would see the old row."""
    database = SimDatabase()
    row = database.claim_row(claimant("run-1"))
    session = database.begin(row.generation)
    session.pending = database.read(TRANSACTIONAL_ID)
    database.hanging = session
    assert database.locked_by() is session
    assert database.claim_row(claimant("run-2")).generation == row.generation + 1
    assert database.sessions == []
    database.finish_hanging()
    assert database.decisions == []


def test_a_session_that_was_cut_cannot_go_on() -> None:
    """C1: statements fail, and COMMIT is unknown."""
    database = SimDatabase()
    row = database.claim_row(claimant("run-1"))
    session = database.begin(row.generation)
    session.pending = row
    database.cut()
    with pytest.raises(StateStoreError):
        session.recorded.execute("copy", ())
    with pytest.raises(CommitUnknownError):
        database.commit(session)


# --- for people --------------------------------------------------------------------------------------------------


def test_a_violation_is_shrunk_to_a_test_that_shows_it_alone() -> None:
    defect = mutant("no owed state: an aborted decision is noted as done")
    with Applied(defect):
        long = next(
            each
            for seed in range(200)
            for each in run_random("tv2", [seed], faults_max=8).reported
            if len(each.schedule.faults) >= 4
        )
        short = shrink(long)
        assert (short.checker, len(short.schedule.faults) < len(long.schedule.faults)) == (long.checker, True)
        assert shrink(short) == short
    pasted: dict[str, Any] = {}
    exec(as_test(short), pasted)  # noqa: S102 - what a person pastes
    (test,) = (value for name, value in pasted.items() if name.startswith("test_"))
    test()
    with Applied(defect), pytest.raises(AssertionError):
        test()


def test_behaviours_with_the_same_beginning_are_one_tree() -> None:
    """What TLC is asked: see `behaviours`, which ``make spec`` runs."""
    tree = behaviours("tv2", at_random("tv2", range(5)))
    assert tree.shown[0][:3] == ("Empty", 1, "none")
    assert sum(map(len, tree.below)) == len(tree.shown) - 1
    assert '<<"Empty", 1, "none", 2, 0, 0, 0, 0, 0, 0>>' in module_of(tree)


def test_a_step_that_was_not_reached_is_named_with_its_schedule() -> None:
    tree = Tree()
    tree.add([("a",), ("b",), ("c",)], "first")
    tree.add([("a",), ("b",), ("d",), ("e",)], "second")
    assert tree.missing({0, 1, 2}) == [(("b",), ("d",), "second")]
    assert tree.missing(set(range(5))) == []


def test_a_late_copy_of_keep_leaves_an_open_transaction_that_can_be_ended() -> None:
    """Found at random: an operator's keepPreparedTxn arrives again, in a transaction of a later driver."""
    lines, violations = trace(Schedule.parse("tv3-2pc-keep@14:operator@20:late-copy@46:arrive"))
    assert violations == [], "\n".join(lines)


def test_a_batch_that_kafka_goes_without_is_not_skipped_with_other_rows() -> None:
    """Found at random: a person drops a decided batch, and its id comes back with new rows from an older checkpoint."""
    lines, violations = trace(Schedule.parse("people-tv2@6:refill-topic@21:drop@44:checkpoint-back"))
    assert violations == [], "\n".join(lines)
    assert any("this one is different" in line for line in lines)


class Named(Choices):
    """Answers by the names of requests, which stay where numbers of choice points move.

    Args:
        steps: the request, or part of its name, and what is chosen there, in this order; '' for the next that has it.
    """

    world: World

    def __init__(self, steps: tuple[tuple[str, str], ...]) -> None:
        super().__init__(Schedule("people-tv2"))
        self._steps = list(steps)

    def _choice(self, position: int, options: object) -> str:
        if not self._steps:
            return super()._choice(position, ())
        request, fault = self._steps[0]
        if request not in self.world.request or fault not in self.offered[position]:
            return super()._choice(position, ())
        del self._steps[0]
        return fault


def run(*steps: tuple[str, str]) -> World:
    choices = Named(steps)
    world = choices.world = World("people-tv2", choices)
    world.run()
    assert [fault for _, fault in choices.taken] == [fault for _, fault in steps]
    return world


END, NEXT = "end 1000", "claim"


@pytest.mark.parametrize(
    ("steps", "causes"),
    [
        # The row is made again from its history.
        (((END, faults.CRASH), (NEXT, people.DELETE_ROW)), []),
        # Neither says whether the open transaction was decided: no adopt ends it, only a look into the table does.
        (((END, faults.CRASH), (NEXT, people.DELETE_STATE)), [HaltCause.ID_IN_USE]),
        (
            ((END, faults.CRASH), (NEXT, people.DELETE_STATE), ("", people.ADOPT)),
            [HaltCause.ID_IN_USE, HaltCause.OPEN_TRANSACTION],
        ),
        (((END, people.ADOPT_LEFT_ON), (NEXT, people.DELETE_STATE)), [HaltCause.OPEN_TRANSACTION]),
        # The topic is another one than that of the batch.
        (((END, people.REMAKE_TOPIC),), [HaltCause.TOPIC_REMADE]),
        (((END, people.REFILL_TOPIC),), [HaltCause.TOPIC_REMADE]),
        (((END, faults.CRASH), (END, people.REMAKE_TOPIC)), [HaltCause.TOPIC_REMADE]),
        (((END, people.DELETE_TOPIC),), [HaltCause.TOPIC_REMADE]),
        (((END, faults.CRASH), (NEXT, people.DELETE_TOPIC)), [HaltCause.TOPIC_REMADE]),
        # A history that is deleted is missed with the row only.
        (((END, faults.CRASH), (NEXT, people.DELETE_HISTORY)), []),
        (((END, people.DELETE_HISTORY), (END, faults.CRASH), (NEXT, people.DELETE_ROW)), [HaltCause.ID_IN_USE]),
        # Where the row tells whether a transaction is decided, nobody's word on it counts.
        (((END, people.RECOVER_ABORT_OPEN),), []),
        ((("update-row", people.RECOVER_COMMIT_OPEN),), []),
        # A backup is restored, and whoever adopts has to name what is lost.
        ((("spark-commit 0", "backup-2"), ("", people.ADOPT)), [HaltCause.COMMITS_LOST, HaltCause.DATABASE_BEHIND]),
        ((("spark-commit 0", faults.CRASH), ("spark-commit 0", "backup-2")), [HaltCause.COMMITS_LOST]),
        # The coordinator shows nothing of it any more: the logs do.
        ((("spark-commit 0", faults.CRASH), ("check-generation", "backup-0")), [HaltCause.DATABASE_BEHIND]),
        # No option lets an older checkpoint write batches again.
        (
            (("spark-commit 0", people.ADOPT_LEFT_ON), ("spark-commit 1", faults.CHECKPOINT_BACK)),
            [HaltCause.BATCHES_RESTARTED],
        ),
    ],
)
def test_what_ended_green_and_wrong_is_mended_or_halts(
    steps: tuple[tuple[str, str], ...], causes: list[HaltCause]
) -> None:
    """C5, B18, D8, D9: without a person's word for it nothing is given up, and nothing written twice."""
    world = run(*steps)
    assert [each.cause for each in world.halts][: len(causes)] == causes
    assert check(world) == []
    assert green(world) or causes


@pytest.mark.parametrize(
    "steps",
    [
        ((END, faults.CRASH), (NEXT, people.DELETE_STATE), ("", people.ADOPT_JOB), ("", people.END_OPEN)),
        (("COMMIT", faults.CRASH), (NEXT, people.DELETE_STATE), ("", people.ADOPT), ("", people.END_OPEN)),
        ((END, people.REMAKE_TOPIC), ("", people.ACCEPT_REPLAY)),
        ((END, people.REMAKE_TOPIC), ("", people.DROP)),
        ((END, people.DELETE_TOPIC), ("", people.ACCEPT_REPLAY)),
        (("spark-commit 0", "backup-2"), ("", people.REPAIR)),
        (("spark-commit 0", "backup-2"), ("", people.ACCEPT_LOSS_JOB)),
    ],
)
def test_what_a_halt_names_settles_it(steps: tuple[tuple[str, str], ...]) -> None:
    """C5, B18, D9: the job goes on, and both sides have what the person has not given up."""
    world = run(*steps)
    assert world.finished
    assert check(world) == []


def test_a_batch_that_kafka_is_owed_is_not_given_up_as_lost() -> None:
    """C5, B28: its rows are in the table; where the logs cannot be read, too, it is sent all the same."""
    world = run((END, faults.FORCE_TERMINATE), ("init", people.DELETE_TOPIC), ("", people.RECOVER_ACCEPT_LOSS))
    assert green(world)
    assert check(world) == []


def test_what_nothing_but_the_table_knows_is_written_again() -> None:
    """C14: not promised. Kafka has aborted what was decided, and the decision is deleted with its row and history."""
    world = run(("update-row", faults.FORCE_TERMINATE), (END, people.DELETE_STATE))
    assert green(world)
    assert world.ledger.written_again == {0: 1}
    assert len(world.database.contents()) == 3 + 5
    assert check(world) == []


# --- the verdict -------------------------------------------------------------------------------------------------


def test_only_the_words_of_a_person_excuse_a_difference() -> None:
    ledger = Ledger()
    record = Record(1, 0, 0, version=3)
    assert (ledger.seen(record), ledger.may_lack(KAFKA, 1), ledger.times_max(1)) == (record, False, 1)
    ledger.any_replay.add(1)
    ledger.not_in_kafka.add(1)
    ledger.written_again[1] += 1
    assert (ledger.seen(record).version, ledger.may_lack(KAFKA, 1), ledger.times_max(1)) == (0, True, 2)
    assert (ledger.may_lack(TABLE, 1), ledger.may_lack(KAFKA, 2), ledger.times_max(2)) == (False, False, 1)


def test_what_ends_green_must_be_right() -> None:
    """Rows that nobody has given up are missed; that a person has acted excuses a halt, and no difference."""
    world = run(("spark-commit 0", people.RECOVER_DROP))
    assert green(world)
    assert check(world) == []
    del world.database.committed[:1]
    assert {name for name, _ in check(world)} == {"no loss", "agreement"}
    world.ledger.not_in_table.add(1)
    assert {name for name, _ in check(world)} == {"no loss", "agreement"}
    world.ledger.not_in_table.add(0)
    assert check(world) == []
    world.drivers[-1].outcome = "halted"
    world.ledger.not_in_table.clear()
    assert check(world) == []


def test_rows_that_come_twice_are_seen_on_each_side() -> None:
    world = run(("spark-commit 0", people.RECOVER_DROP))
    world.database.committed += world.database.committed[:1]
    assert {name for name, _ in check(world)} == {"no duplicate"}


def test_where_nobody_has_acted_everything_must_hold() -> None:
    """A profile in which people could act excuses nothing by itself."""
    world = run()
    assert not world.people.acted
    world.halts += run((END, people.REMAKE_TOPIC)).halts
    assert {name for name, _ in check(world)} == {"halt"}


# --- schedules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PEOPLE)
def test_acts_and_faults_at_random_end_right_or_not_green(profile: str) -> None:
    tally = run_random(profile, range(50), faults_max=6)
    assert [(str(each.schedule), each.checker, each.text) for each in tally.reported] == []


def test_a_crash_and_any_act_at_the_next_start_end_right_or_not_green() -> None:
    choices = run_schedule(Schedule("people-tv2"), Tally())
    crash = next(position for position, options in enumerate(choices.offered) if faults.HANG in options) + 1
    tally = run_children(Schedule("people-tv2", ((crash, faults.CRASH),)), people.KINDS)
    assert tally.schedules > 100
    assert [(str(each.schedule), each.checker, each.text) for each in tally.reported] == []


def test_every_act_is_offered_somewhere_and_every_halt_has_its_answers() -> None:
    seen: set[str] = set()
    for seed in range(80):
        choices = RandomChoices(Schedule("people-tv2"), seed, faults_max=4)
        World("people-tv2", choices).run()
        seen.update(*choices.offered)
    assert {kind for kind in people.KINDS if not kind.startswith(people.BACKUP)} <= seen
    assert {"backup-0", "backup-5", people.ADOPT, people.ACCEPT_LOSS_JOB, people.REPAIR, people.DROP} <= seen


@pytest.mark.parametrize("name", ["topic ids are not compared", "any range of lost batches is accepted"])
def test_what_keeps_people_from_it_is_missed_when_it_is_taken_out(name: str) -> None:
    """`make simulate` hunts all of them."""
    (mutant,) = (each for each in MUTANTS if each.name == name)
    assert hunt(mutant, seed=1, schedules_max=2_000).violation is not None
