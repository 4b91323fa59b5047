"""Choices: the possible actions for each symptom, the safest first. Those for halts are in ``halt_choices``."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.runbook.choice import UNCHANGED, Act, Choice
from spark_2pc_sink.runbook.halt_choices import HALT_CHOICES, drop, other_cluster
from spark_2pc_sink.runbook.picture import EVERY_SINK, Picture
from spark_2pc_sink.runbook.symptoms import Symptom

if TYPE_CHECKING:
    from spark_2pc_sink.recovery.report import ActionKind

#: What each act of a recovery that needs no decision changes in Kafka and in the database.
EFFECTS: Final[dict[ActionKind, tuple[str, str]]] = {
    "rebuild_row": (UNCHANGED, "the state row is made again from its history"),
    "commit": ("the decided transaction is committed: readers see its records", "the state row says done"),
    "abort": ("the open transaction is aborted: no reader has seen its records", "a new claim of the state row"),
    "note_done": (UNCHANGED, "the state row says done, as Kafka has committed the batch"),
    "note_owed": (UNCHANGED, "the state row says owed, as Kafka has aborted the batch: the job sends it again"),
    "wait": ("the end that is under way is waited for", "the state row says how it ended"),
}
#: Options that locate the state rows.
PLACES: Final = "--state-schema, --state-table and --database"
#: A step that begins so gets the cluster when it is shown (`BothSides.with_cluster`).
FORCE_TERMINATE: Final = "spark-2pc transactions force-terminate"
_LOOK_AGAIN: Final = Choice(
    name="again", title="look again in a moment: a batch under way ends by itself", act=Act.LOOK_AGAIN
)
_START: Final = Choice(
    name="start_job",
    title="start the job as it was: it does what is left to do",
    kafka="the records of the owed batch are sent again",
    database="the state row says done",
    steps=("start the job with the same checkpoint, database and options",),
)


def choices_of(symptom: Symptom, picture: Picture) -> tuple[Choice, ...]:
    """The possible actions, the safest first; empty if there is no problem.

    Args:
        symptom: the picture's symptom.
        picture: has the batch that a choice is about, and what a recovery would do.
    """
    return (HALT_CHOICES.get(symptom) or _CHOICES[symptom])(picture)


def settling(picture: Picture, name: str, title: str) -> Choice:
    """The recovery that needs no decision, with the changes that status has planned."""
    planned = () if picture.report is None else picture.report.actions
    effects = [EFFECTS[action.kind] for action in planned if action.kind in EFFECTS]
    kafka, database = (
        "; ".join(dict.fromkeys(text for text in side if text != UNCHANGED)) or UNCHANGED
        for side in ([effect[0] for effect in effects], [effect[1] for effect in effects])
    )
    automatic = len(effects) == len(planned)
    return Choice(name=name, title=title, kafka=kafka, database=database, act=Act.RECOVER, automatic=automatic)


def _driver_alive(picture: Picture) -> tuple[Choice, ...]:
    stop = Choice(
        name="stop_job",
        title="stop the job first, where it does not get on, and look again",
        steps=("stop the job by its scheduler", "call the runbook again"),
    )
    taken = settling(picture, "take_over", "stop the driver from here and settle the batch")
    effect = f"{taken.database}; the driver can decide nothing any more, and its job ends with SupersededError"
    effect = effect.removeprefix(f"{UNCHANGED}; ")
    over = replace(taken, database=effect, options={"take_over": True}, automatic=False)
    return (_LOOK_AGAIN, stop, over)


def _in_doubt(picture: Picture) -> tuple[Choice, ...]:
    return (settling(picture, "settle", "end the batch as the database has decided"),)


def _lost_row(picture: Picture) -> tuple[Choice, ...]:
    return (settling(picture, "rebuild", "make the state row again and end what it names"),)


def _owed(picture: Picture) -> tuple[Choice, ...]:
    return (_START, drop(picture, "Kafka is to go without it"))


def _not_known(picture: Picture) -> tuple[Choice, ...]:
    look = f"compare {PLACES}: they are those of the job"
    return (
        Choice(name="other_place", title="look where the job has its state row", steps=(look,)),
        Choice(
            name="first_start",
            title=f"start the job: {picture.transactional_id} has never run here",
            kafka="the first batch is written",
            database="the first batch is written, and the state row made",
            steps=("start the job",),
        ),
    )


def _out_of_reach(what: str, check: str) -> Callable[[Picture], tuple[Choice, ...]]:
    repair = Choice(
        name="repair",
        title=f"make {what} answer again; the other side is left alone until then",
        steps=(check, "call the runbook again"),
    )
    again = Choice(name="again", title="look again in a moment", act=Act.LOOK_AGAIN)
    # Sinks that are found then are not part of this picture.
    return lambda picture: (repair,) if picture.transactional_id == EVERY_SINK else (repair, again)


def _unreadable(picture: Picture) -> tuple[Choice, ...]:
    del picture
    newer = Choice(
        name="newer_version",
        title="use the version of spark-2pc-sink that the job uses",
        steps=("install that version", "call the runbook again"),
    )
    restore = Choice(
        name="restore",
        title="restore the row, where somebody has changed it by hand",
        database="the row as it was",
        steps=("take the row from a backup, or delete it: it is made again from its history", "call the runbook again"),
    )
    return (newer, restore)


def _hanging(picture: Picture) -> tuple[Choice, ...]:
    wait = Choice(
        name="owner",
        title="leave it: its owner is known and ends it",
        steps=("find the application by its producer id in its log", "restart it: it ends what it has left open"),
    )
    where = ", ".join(f"{one.where} at offset {one.start_offset}" for one in picture.readers.hanging)
    abort = Choice(
        name="abort",
        title="end it with an abort marker, after every coordinator was asked again",
        kafka=f"an abort marker is written to {where}: readers go on behind it and never get its records",
        act=Act.ABORT_HANGING,
    )
    return (wait, abort)


def _standing(picture: Picture) -> tuple[Choice, ...]:
    ids = ", ".join(one.transactional_id for one in picture.readers.waiting)
    owner = Choice(
        name="owner",
        title=f"have its owner end it: {ids}",
        kafka="the owner commits or aborts its transaction",
        steps=(
            "restart the application that owns the id",
            "where the id is one of a sink: spark-2pc runbook --transactional-id with that id",
        ),
    )
    terminate = Choice(
        name="force_terminate",
        title="have its coordinator abort it, where the owner is gone for good",
        kafka="all that the id has open is aborted, and its producer fenced",
        steps=tuple(
            f"{FORCE_TERMINATE} --transactional-id {shlex.quote(one.transactional_id)}"
            for one in picture.readers.waiting
        ),
    )
    return (owner, _LOOK_AGAIN, terminate)


_CHOICES: Final[dict[Symptom, Callable[[Picture], tuple[Choice, ...]]]] = {
    Symptom.NOTHING_WRONG: lambda _: (),
    Symptom.DRIVER_ALIVE: _driver_alive,
    Symptom.IN_DOUBT: _in_doubt,
    Symptom.OWED: _owed,
    Symptom.LOST_ROW: _lost_row,
    Symptom.NOT_KNOWN: _not_known,
    Symptom.ELSEWHERE: other_cluster,
    Symptom.KAFKA_OUT_OF_REACH: _out_of_reach(
        "Kafka", "look at the brokers, the network, --bootstrap-server and the login in --command-config"
    ),
    Symptom.DATABASE_OUT_OF_REACH: _out_of_reach(
        "the database", "look at the server, the network, --database and PGPASSWORD or ~/.pgpass"
    ),
    Symptom.UNREADABLE: _unreadable,
    Symptom.HANGING_TRANSACTION: _hanging,
    Symptom.READERS_STAND_STILL: _standing,
}
