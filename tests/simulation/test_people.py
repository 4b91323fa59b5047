"""What people do at any point, and answer to a halt: the verdict on it, and that it is neither blind nor false.

``make simulate`` runs each act at each point; these are the shortest schedules of what once ended green and wrong.
"""

from __future__ import annotations

import logging

import pytest

from spark_2pc_sink.errors import HaltCause
from tests.simulation import faults, people
from tests.simulation.broker import Record
from tests.simulation.checkers import check, green
from tests.simulation.command import MUTANTS
from tests.simulation.explore import Tally, hunt, run_children, run_random, run_schedule
from tests.simulation.schedule import PEOPLE, Choices, RandomChoices, Schedule
from tests.simulation.world import KAFKA, TABLE, Ledger, World


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every recovery warns of what it mended."""
    caplog.set_level(logging.CRITICAL, "spark_2pc_sink")


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
