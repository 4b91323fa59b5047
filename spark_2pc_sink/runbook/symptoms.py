"""Symptoms: names for the problems of a sink, and which of them a picture shows.

Each `HaltCause` is one. Some occur only in a job, because they concern the batch that Spark has passed; the job's error
names the cause, and a person enters it. The state of both sides takes precedence over what a person enters.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from jdbc_state import OWED
from spark_2pc_sink.errors import HaltCause

if TYPE_CHECKING:
    from spark_2pc_sink.runbook.picture import Picture


class Symptom(str, Enum):
    """A problem; the value is its name on the command line and its heading in RUNBOOK.md."""

    NOTHING_WRONG = "nothing_wrong"
    DRIVER_ALIVE = "driver_alive"
    IN_DOUBT = "in_doubt"
    OWED = "owed"
    LOST_ROW = "lost_row"
    NOT_KNOWN = "not_known"
    ELSEWHERE = "elsewhere"
    KAFKA_OUT_OF_REACH = "kafka_out_of_reach"
    DATABASE_OUT_OF_REACH = "database_out_of_reach"
    UNREADABLE = "unreadable"
    HANGING_TRANSACTION = "hanging_transaction"
    READERS_STAND_STILL = "readers_stand_still"
    OTHER_CLUSTER = HaltCause.OTHER_CLUSTER.value
    ID_IN_USE = HaltCause.ID_IN_USE.value
    OPEN_TRANSACTION = HaltCause.OPEN_TRANSACTION.value
    DATABASE_BEHIND = HaltCause.DATABASE_BEHIND.value
    COMMITS_LOST = HaltCause.COMMITS_LOST.value
    OUTCOME_LOST = HaltCause.OUTCOME_LOST.value
    TOPIC_REMADE = HaltCause.TOPIC_REMADE.value
    NOT_THE_FIRST_BATCH = HaltCause.NOT_THE_FIRST_BATCH.value
    GAP = HaltCause.GAP.value
    BATCHES_RESTARTED = HaltCause.BATCHES_RESTARTED.value
    OTHER_BATCH_OWED = HaltCause.OTHER_BATCH_OWED.value
    RESEND_DIFFERS = HaltCause.RESEND_DIFFERS.value
    REPLAY_DIFFERS = HaltCause.REPLAY_DIFFERS.value
    NOT_HANDED_OVER = HaltCause.NOT_HANDED_OVER.value


class About(NamedTuple):
    """A symptom's description for people.

    Attributes:
        title: a few words.
        meaning: what has happened, and the effect on both sides.
    """

    title: str
    meaning: str


#: Causes that status cannot see, as they concern a batch that Spark has passed to the sink, or a lost claim; and the
#: text of the job's error. The text for a gap may end with that for a skipped batch.
TOLD_CAUSES: Final[dict[HaltCause, str]] = {
    HaltCause.COMMITS_LOST: "the database has lost commits",
    HaltCause.NOT_THE_FIRST_BATCH: "the first batch is",
    HaltCause.GAP: "in the state row: it is neither its replay nor the next",
    HaltCause.BATCHES_RESTARTED: "batch ids of this query start at 0 again",
    HaltCause.OTHER_BATCH_OWED: "while Kafka is still owed",
    HaltCause.RESEND_DIFFERS: "the replay of the owed batch is not the batch that the database has",
    HaltCause.REPLAY_DIFFERS: "both sides have a batch of this id, and it is not the one that came now",
    HaltCause.NOT_HANDED_OVER: "your function did not call the sink for batch",
}
#: Those of them that concern an owed batch.
_OF_OWED: Final = frozenset({HaltCause.OTHER_BATCH_OWED, HaltCause.RESEND_DIFFERS})

ABOUT: Final[dict[Symptom, About]] = {
    Symptom.NOTHING_WRONG: About(
        "nothing is wrong",
        "Both sides agree about the last batch, and no other transaction holds up the readers of its topics.",
    ),
    Symptom.DRIVER_ALIVE: About(
        "in doubt, and the driver lives or may live",
        "A batch is under way. A driver that lives ends it by itself, so this is no incident unless it lasts.",
    ),
    Symptom.IN_DOUBT: About(
        "in doubt, and no driver is there",
        "A driver has died in the middle of a batch. The state row says how the batch ends, so this has a safe "
        "automatic answer.",
    ),
    Symptom.OWED: About(
        "Kafka is owed a batch",
        "The table has the rows of the batch, and Kafka has aborted its records. The job sends them again when it "
        "starts.",
    ),
    Symptom.LOST_ROW: About(
        "the state row is lost, its history is there",
        "Somebody deleted the state row. Its history says what the row said, so it can be made again.",
    ),
    Symptom.NOT_KNOWN: About(
        "no state row and no history",
        "Either the sink has never run, or this is not the database, the schema or the table of its state row.",
    ),
    Symptom.ELSEWHERE: About(
        "the sink belongs to another Kafka cluster",
        "Its state row names another cluster than the one that was asked. This cluster tells nothing about it.",
    ),
    Symptom.KAFKA_OUT_OF_REACH: About(
        "Kafka is out of reach",
        "Kafka did not answer, or refused. A batch that the database has decided stays in doubt until it answers.",
    ),
    Symptom.DATABASE_OUT_OF_REACH: About(
        "the database is out of reach",
        "The database did not answer, or refused. Without its state rows nobody can say how a batch ends.",
    ),
    Symptom.UNREADABLE: About(
        "a side shows something that this version does not understand",
        "A newer version has written the state row, or somebody has changed it by hand. Other sinks are not concerned.",
    ),
    Symptom.HANGING_TRANSACTION: About(
        "a transaction hangs in a topic",
        "Another producer has left a transaction open that no coordinator will end. Readers of committed records wait "
        "behind it.",
    ),
    Symptom.READERS_STAND_STILL: About(
        "readers wait for a transaction of another producer",
        "The sink is well. Another transactional id has a transaction open in its topic, and its coordinator knows it.",
    ),
    Symptom.OTHER_CLUSTER: About(
        "the state row belongs to another Kafka cluster",
        "The cluster was replaced, or the address is that of another cluster. Each has batches of its own.",
    ),
    Symptom.ID_IN_USE: About(
        "Kafka knows the transactional id, the database does not",
        "Another application uses the id, or the state row is somewhere else, or it was lost with its history.",
    ),
    Symptom.OPEN_TRANSACTION: About(
        "Kafka has a transaction open that no state row tells of",
        "The state row and its history are lost. The rows of the transaction are in the table, or they are not.",
    ),
    Symptom.DATABASE_BEHIND: About(
        "the database is behind Kafka",
        "A backup was restored, or a failover lost commits: readers of Kafka have batches that the table lacks.",
    ),
    Symptom.COMMITS_LOST: About(
        "the database has lost commits of the running driver",
        "A failover took back what the database had confirmed. The next start finds out whether batches are missing.",
    ),
    Symptom.OUTCOME_LOST: About(
        "nobody can tell how a decided transaction ended",
        "The table has the batch. The coordinator has forgotten its transaction, and no log of its topics tells.",
    ),
    Symptom.TOPIC_REMADE: About(
        "Kafka has lost records of a decided batch",
        "The table has the batch. A topic of it was deleted, or deleted and made anew, or its log lost records.",
    ),
    Symptom.NOT_THE_FIRST_BATCH: About(
        "the first batch that came is not batch 0",
        "The checkpoint has batches of which the state row knows nothing: an option was changed, or the row is lost.",
    ),
    Symptom.GAP: About(
        "checkpoint and state row are of different ages",
        "The batch that came is neither the one of the state row nor the next: one of the two was restored.",
    ),
    Symptom.BATCHES_RESTARTED: About(
        "the query starts at batch 0 again",
        "The state row has later batches of the same query. The pipeline was fully refreshed, or the checkpoint was "
        "emptied or replaced by an old one.",
    ),
    Symptom.OTHER_BATCH_OWED: About(
        "another batch came than the one that Kafka is owed",
        "The checkpoint is not the one whose batch Kafka has aborted.",
    ),
    Symptom.RESEND_DIFFERS: About(
        "the replay of the owed batch has other rows",
        "The table has the batch as it was. The source or the job gives other rows for it now.",
    ),
    Symptom.REPLAY_DIFFERS: About(
        "a batch came again, with other rows",
        "Both sides have a batch of this id. What came now is another one: the job, the source or the checkpoint has "
        "changed.",
    ),
    Symptom.NOT_HANDED_OVER: About(
        "the job left a batch out",
        "The function of the job did not call the sink for a batch that may have had rows. Neither side has it.",
    ),
}


def cause_in(text: str) -> HaltCause | None:
    """The cause named in a text, by its value or by the words of the error; None if there is none.

    Args:
        text: a cause, or the job's error from its log.
    """
    word = text.strip().lower()
    if word in {cause.value for cause in HaltCause}:
        return HaltCause(word)
    return next((cause for cause, says in TOLD_CAUSES.items() if says in text), None)


def symptom_of(picture: Picture) -> Symptom:
    """Name the problem of one sink.

    Args:
        picture: what was observed.
    """
    return _out_of_reach(picture) or _halted(picture) or _unfinished(picture) or _held_up(picture)


def _out_of_reach(picture: Picture) -> Symptom | None:
    """The symptom of a sink with a side that could not be read, or is invalid."""
    if picture.database_problem:
        return Symptom.DATABASE_OUT_OF_REACH
    if picture.kafka_problem:
        return Symptom.KAFKA_OUT_OF_REACH
    return Symptom.UNREADABLE if picture.unreadable else None


def _halted(picture: Picture) -> Symptom | None:
    """The symptom of a sink that no recovery would touch without a decision, as both sides show."""
    report = picture.report
    if report is None:
        return Symptom.NOT_KNOWN
    if report.elsewhere and picture.told is not HaltCause.OTHER_CLUSTER:
        return Symptom.ELSEWHERE
    if report.cause is HaltCause.ID_IN_USE and picture.told is HaltCause.OPEN_TRANSACTION:
        # Status sees that the id is in use; the question about the transaction is only put when taking it over.
        return Symptom.OPEN_TRANSACTION
    if report.cause is not None:
        return Symptom(report.cause.value)
    return None if report.known else Symptom.NOT_KNOWN


def _unfinished(picture: Picture) -> Symptom | None:
    """The symptom of a sink that its job or a recovery will work on; or the one that its job reports."""
    report = picture.report
    if report is None:
        return None
    owed = report.row is not None and report.row.status == OWED
    if not report.settled and (report.actions or not owed):
        if picture.driver_may_live:
            return Symptom.DRIVER_ALIVE
        return Symptom.LOST_ROW if report.before is None else Symptom.IN_DOUBT
    if picture.told in TOLD_CAUSES and owed == (picture.told in _OF_OWED):
        return Symptom(picture.told.value)
    if not owed:
        return None
    return Symptom.DRIVER_ALIVE if picture.driver_may_live else Symptom.OWED


def _held_up(picture: Picture) -> Symptom:
    """The symptom of a sink that is fine: whether other producers block the consumers of its topics."""
    if picture.readers.hanging:
        return Symptom.HANGING_TRANSACTION
    return Symptom.READERS_STAND_STILL if picture.readers.waiting else Symptom.NOTHING_WRONG
