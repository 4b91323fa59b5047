"""The table of halts: each cause, what it means, and what a person can do about it, the safest first.

Errors, `recover`, `status`, the runbook, the dashboard, RUNBOOK.md and pages of docs are made from it. To add a cause,
add a value of `HaltCause` and its entry here, and raise it where it is met.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from spark_2pc_sink.choices.choice import BATCH, Act, Choice, Entry
from spark_2pc_sink.choices.symptoms import (
    ACCEPT_REPLAY,
    ADOPT,
    CALL_AGAIN,
    DROP,
    NEW_CHECKPOINT,
    NEW_NAME,
    OWN_CLUSTER,
    Symptom,
    restoring,
)


class HaltCause(str, Enum):
    """Why a person has to decide, for programs; equal to the text in the command line's JSON. `HALTS` explains each."""

    OTHER_CLUSTER = "other_cluster"
    ID_IN_USE = "id_in_use"
    OPEN_TRANSACTION = "open_transaction"
    DATABASE_BEHIND = "database_behind"
    COMMITS_LOST = "commits_lost"
    OUTCOME_LOST = "outcome_lost"
    TOPIC_REMADE = "topic_remade"
    NOT_THE_FIRST_BATCH = "not_the_first_batch"
    GAP = "gap"
    BATCHES_RESTARTED = "batches_restarted"
    OTHER_BATCH_OWED = "other_batch_owed"
    RESEND_DIFFERS = "resend_differs"
    REPLAY_DIFFERS = "replay_differs"
    NOT_HANDED_OVER = "not_handed_over"


COMPARE: Final = Choice(name="compare", title="compare topic and table before anything is decided", act=Act.COMPARE)
_COMPARE_BATCH: Final = replace(COMPARE, options={"batch": BATCH})
_PASS_OVER: Final = Choice(
    name="pass_over",
    title="continue without the batches, by one start of the sink",
    kafka="the next batch is written; earlier batches stay as they are",
    database="the next batch is written; the state row skips the named batches",
    options={"adopt": True},
    inputs={"accept_loss": "Which batches are skipped? FIRST..LAST or N; the error of the job names them"},
    accepts="if only one side has some of these batches, this stays so",
    on_sink=True,
)
_ACCEPT_LOSS: Final = Choice(
    name="accept_loss",
    title="continue without the batches that the database lacks (--accept-loss none if another application used this "
    "id: give that application another id first)",
    kafka="the id gets a new epoch; the records of the batches stay, and are not sent again",
    database="the state row has the last of the batches as done; put their rows back by hand, or give them up",
    act=Act.RECOVER,
    options={"adopt": True},
    inputs={
        "accept_loss": "Which batches does the database lack? FIRST..LAST, N, or none (another application used the id)"
    },
    accepts="the topic has batches that the table lacks",
)
_WRITE_AGAIN: Final = Choice(
    name="write_again",
    title="the restart was intended: empty both sides, and write everything from the source again",
    kafka="batches are written from 0 on",
    database="the state row belongs to the new query; batches are written from 0 on",
    options={"adopt": True},
    steps=("empty the table, and delete the records of the topic", NEW_NAME),
    accepts="what is left in topic and table is duplicated",
    on_sink=True,
)
_OLD_JOB: Final = Choice(
    name="old_job",
    title="start the job as it was before its change (of topic, key, value, headers, dead_letter_topic, the query, or "
    "a setting that to_json depends on: spark.sql.session.timeZone, spark.sql.jsonGenerator.ignoreNullFields or "
    "spark.sql.legacy.timeParserPolicy), until the batch is written",
    kafka="the batch is sent as it was, if Kafka lacks it",
    steps=(
        (
            "undo the change (to_json depends on spark.sql.session.timeZone, spark.sql.jsonGenerator.ignoreNullFields "
            "and spark.sql.legacy.timeParserPolicy)"
        ),
        "start the job",
        "then start the changed job",
    ),
)
_CHANGE_BACK: Final = Choice(
    name="change_back",
    title="change transactional_id, state_schema, state_table or database back, if one differs from the last run",
    steps=("compare them with the last run", "start the job with the earlier values"),
)
_EITHER: Final = restoring("restore the checkpoint or the database, so that both belong together")


HALTS: Final[dict[HaltCause, Entry]] = {
    HaltCause.OTHER_CLUSTER: Entry(
        title="the state row belongs to another Kafka cluster",
        meaning="The cluster was replaced, or the address is that of another cluster. Each cluster has its own "
        "batches.",
        choices=(
            OWN_CLUSTER,
            Choice(
                name="set_by_hand",
                title="if that cluster is gone for good: check whether the topic here has the batch's records, and set "
                "the row's status in the database to 'done' if it has them or may lack them, to 'owed' if they must be "
                "sent; then adopt the row",
                needs="decided",
            ),
            ADOPT,
        ),
        says="belongs to Kafka cluster",
        seen_as=Symptom.ELSEWHERE,
        advice="If the old cluster still exists, use it: recover there first. If it was replaced, and its topics were "
        "copied, assign the row to the new one.",
        walk=(("adopt", "the cluster was replaced, and the topic copied"),),
    ),
    HaltCause.ID_IN_USE: Entry(
        title="Kafka knows the transactional id, the database does not",
        meaning="Another application uses the id, or the state row is somewhere else, or it was lost with its history.",
        choices=(
            Choice(
                name="other_id",
                title="give this sink another transactional id, if another application uses this one",
                steps=("set transactional_id of the sink to a name that nothing else uses", "start the job"),
            ),
            _CHANGE_BACK,
            restoring("restore the state row, or its history, from a backup"),
            replace(
                _PASS_OVER, title="the sink has run, and 0..LAST are the batches of its checkpoint: continue after them"
            ),
            replace(
                ADOPT,
                title="take the id over: it belongs to this sink, which begins with its first batch. Asks how an open "
                "transaction ends",
                kafka="the id gets a new epoch, which fences any other user of it",
                database="a new state row without a batch",
                accepts="what either side has under this id stays as it is",
                unless=None,
            ),
        ),
        says="the state row is new, but Kafka has transactions of this id",
        advice="If the row was lost, the checkpoint still shows which batches were written: its newest file in "
        "`commits/` is the last. Both sides have them, so the sink skips them.",
        walk=(("pass_over", "row and history were deleted, both sides have these batches"),),
    ),
    HaltCause.OPEN_TRANSACTION: Entry(
        title="Kafka has an open transaction that no state row names",
        meaning="The state row and its history are lost. Its rows may be in the table, or not.",
        choices=(
            restoring("restore the state row or its history", "restore it from a backup that is newer than the batch"),
            replace(COMPARE, options={"open": True}),
            Choice(
                name="commit",
                title="the table HAS the rows of its records: commit it",
                kafka="the open transaction is committed: readers see its records",
                database="a state row that has the batch as done; Spark's replay is skipped",
                act=Act.RECOVER,
                options={"adopt": True, "open_transaction": "commit"},
                inputs={
                    "batch": "Which batch is it? A number: the newest batch in the checkpoint's offsets/ that is not "
                    "in its commits/"
                },
                accepts="if the table lacks the rows, they are in the topic alone",
                unless="ended",
            ),
            Choice(
                name="abort",
                title="the table has NONE of the rows of its records: abort it",
                kafka="the open transaction is aborted: no reader ever gets its records",
                database="a state row without a batch; the next start asks for the earlier batches",
                act=Act.RECOVER,
                options={"adopt": True, "open_transaction": "abort"},
                accepts="if the table has the rows, they are in the table alone",
                unless="ended",
            ),
            replace(
                ADOPT,
                title="the topics lack the batch: remove its rows from the table first",
                kafka="the id gets a new epoch; Spark's replay is written",
                database="a new state row without a batch; Spark's replay is written",
                accepts="what either side has under this id stays as it is",
                needs="ended",
            ),
        ),
        says="neither a state row nor its history says whether",
        # Status sees that the id is in use; the question about the transaction is only put when taking it over.
        seen_as=HaltCause.ID_IN_USE,
        advice="Restore the row, if you can. Otherwise `compare` reads the records of the open transaction, and looks "
        "for their rows. If all are there: `commit`, with the newest batch in the checkpoint's `offsets/` that is not "
        "in its `commits/`. If none is there: `abort`.",
        walk=(("compare", ""), ("commit", "the comparison found its rows in the table")),
    ),
    HaltCause.DATABASE_BEHIND: Entry(
        title="the database is behind Kafka",
        meaning="A backup was restored, or a failover lost commits: Kafka has batches that the table lacks.",
        choices=(
            restoring("restore the newest backup, or promote the newest standby: then nothing is lost"),
            COMPARE,
            _ACCEPT_LOSS,
        ),
        says="the database is behind Kafka",
        advice="Restore the newest state, if there is a newer one: then nothing is lost. Otherwise `compare` names the "
        "rows that the table lacks, and `spark-2pc verify --write-missing DIR` writes them in a form that the table "
        "accepts. `accept_loss` continues without them, or after you have put them back.",
        walk=(("accept_loss", "there is no newer backup"),),
    ),
    HaltCause.COMMITS_LOST: Entry(
        title="the database has lost commits of the running driver",
        meaning="A failover undid commits that the database had confirmed. The next start finds out whether batches "
        "are missing.",
        choices=(
            restoring("promote the standby that has the commits, if there is one, or restore the newest backup"),
            COMPARE,
            Choice(
                name="start_job",
                title="start the job: it checks whether a batch is missing, and halts with database_behind if one is",
                kafka="nothing, unless both sides agree: then the next batch",
                database="a new claim; the next batch, if both sides agree",
                steps=("start the job", f"if it halts: {CALL_AGAIN}"),
            ),
            replace(_ACCEPT_LOSS, needs="lost batches"),
        ),
        says="the database has lost commits",
        job_only=True,
        advice="If batches are missing, both sides show it after the failover, and the runbook shows "
        "[database_behind](#database_behind).",
        walk=(("accept_loss", "the old primary is gone for good"),),
    ),
    HaltCause.OUTCOME_LOST: Entry(
        title="it is unknown how a decided transaction ended",
        meaning="The table has the batch. The coordinator has forgotten its transaction, and no log of its topics "
        "shows how it ended.",
        choices=(
            Choice(
                name="make_readable",
                title="make the partitions readable, if they exist: their broker, the permission to READ, more time "
                "(max.block.ms)",
                steps=("bring the brokers of the partitions back, or grant READ", CALL_AGAIN),
                unless="readable",
            ),
            _COMPARE_BATCH,
            ACCEPT_REPLAY,
            DROP,
        ),
        says="no partition tells how",
        advice="If a partition cannot be read, make it readable. Otherwise `compare`: if the topic lacks the batch, "
        "send it again; if it has it, `drop` counts it as done.",
        walk=(("accept_replay", "the topic lacks the batch"), ("start_job", "")),
    ),
    HaltCause.TOPIC_REMADE: Entry(
        title="Kafka has lost records of a decided batch",
        meaning="The table has the batch. A topic of it was deleted, or deleted and created again, or its log lost "
        "records.",
        choices=(
            _COMPARE_BATCH,
            replace(
                ACCEPT_REPLAY,
                title="send batch {batch} again as Spark replays it (first create a topic that is gone)",
                accepts="a topic that still has the batch gets it twice, and the replay may differ from the rows in "
                "the table",
            ),
            DROP,
        ),
        says="Kafka has lost records of it",
        advice="Create a topic that is gone, then send the batch again. Earlier batches are not affected: readers had "
        "them.",
        walk=(("accept_replay", "the topic was created again and is empty"), ("start_job", "")),
    ),
    HaltCause.NOT_THE_FIRST_BATCH: Entry(
        title="the first batch received is not batch 0",
        meaning="The checkpoint has batches that the state row does not know: an option was changed, or the row is "
        "lost.",
        choices=(_CHANGE_BACK, _EITHER, COMPARE, _PASS_OVER),
        says="the state row has none of the batches before it",
        job_only=True,
        advice="Compare `transactional_id`, `state_schema`, `state_table` and `database` with the last run, change "
        "them back, and start the job.",
        walk=(("change_back", ""),),
    ),
    HaltCause.GAP: Entry(
        title="checkpoint and state row have different ages",
        meaning="The batch received is neither that of the state row nor the next one: checkpoint or row was restored.",
        choices=(
            restoring("restore the newer of the two: the state row if the batch is too new, the checkpoint if too old"),
            COMPARE,
            replace(
                NEW_CHECKPOINT,
                title="the checkpoint is older and cannot be restored: use a new one that begins after the batches of "
                "both sides",
                unless="row older",
            ),
            replace(_PASS_OVER, unless="checkpoint older"),
        ),
        says="it is neither its replay nor the next",
        job_only=True,
        advice="Restore the newer of the two. If the row is older and cannot be restored, `compare`, put back what the "
        "table lacks, and skip the batches.",
        walk=(("pass_over", "neither side has these batches, and they are not needed"),),
    ),
    HaltCause.BATCHES_RESTARTED: Entry(
        title="the query starts at batch 0 again",
        meaning="The state row has later batches of the same query. The pipeline was fully refreshed, or the "
        "checkpoint was emptied or replaced by an old one.",
        choices=(_EITHER, COMPARE, NEW_CHECKPOINT, _WRITE_AGAIN),
        says="batch ids of this query start at 0 again",
        job_only=True,
        advice="A full refresh reads the source from its beginning. Nothing was written. To write everything again, "
        "empty the table and delete the records of the topic first, as the sink cannot do that for you. To keep what "
        "both sides have, choose `new_checkpoint`, and let the source begin after it.",
        walk=(("write_again", "the pipeline was refreshed, and both sides are empty"),),
    ),
    HaltCause.OTHER_BATCH_OWED: Entry(
        title="the batch received is not the one that Kafka is owed",
        meaning="The checkpoint is not the one whose batch Kafka has aborted.",
        choices=(restoring("use the checkpoint whose batch Kafka is owed", "start the job with that checkpoint"), DROP),
        says="while Kafka is still owed",
        job_only=True,
        about_owed=True,
        advice="Start the job with the checkpoint that belongs to the owed batch. If it is gone, give up the Kafka "
        "half of that batch.",
        walk=(("drop", "its checkpoint is gone"),),
    ),
    HaltCause.RESEND_DIFFERS: Entry(
        title="the replay of the owed batch has other rows",
        meaning="The table has the batch with its earlier rows. The source or the job now gives other rows for it.",
        choices=(
            replace(_OLD_JOB, unless="service"),
            replace(_COMPARE_BATCH, needs="service"),
            replace(ACCEPT_REPLAY, unless="service"),
            DROP,
        ),
        says="the replay of the owed batch differs from the batch in the database",
        job_only=True,
        about_owed=True,
        advice="If the job was changed, start the old one until the batch is written. Otherwise send the new rows, and "
        "correct the table.",
        walk=(("accept_replay", "the source was corrected, the table follows"), ("start_job", "")),
    ),
    HaltCause.REPLAY_DIFFERS: Entry(
        title="a batch was received again, with other rows",
        meaning="Both sides have a batch with this id. The one received now is different: the job, the source or the "
        "checkpoint has changed.",
        choices=(
            Choice(
                name="call_once",
                title="call the sink once for each batch, with all its rows (unionByName)",
                needs="called twice",
            ),
            replace(_OLD_JOB, unless="called twice"),
            replace(_EITHER, unless="called twice"),
            Choice(
                name="two_sinks", title="for two parts of one stream use two sinks, each with its own transactional_id"
            ),
            Choice(
                name="keep",
                title="keep what both sides have, and skip what was received now, by one start of the sink",
                options={"accept_replay": BATCH},
                accepts="rows that are only in the replay are on neither side",
                on_sink=True,
                unless="called twice",
            ),
            replace(NEW_CHECKPOINT, needs="first batch"),
            replace(_WRITE_AGAIN, needs="first batch"),
        ),
        says="both sides have a batch of this id, and this one is different",
        job_only=True,
        advice="Start the old job until the batch is written, or restore the checkpoint. If both sides must stay as "
        "they are, skip what was received now.",
        walk=(("keep", "both sides have the batch as it was first"),),
    ),
    HaltCause.NOT_HANDED_OVER: Entry(
        title="the job skipped a batch",
        meaning="The function of the job did not call the sink for a batch that may have had rows. "
        "Neither side has it.",
        choices=(
            Choice(
                name="call_the_sink",
                title="call the sink for every batch, as it accepts empty ones, and let its errors end the query",
                steps=("correct the function", "restore the checkpoint as it was before the batch, or use pass_over"),
            ),
            _PASS_OVER,
        ),
        says="your function did not call the sink for batch",
        job_only=True,
        advice="Correct the function: it must call the sink for every batch, also for one without rows, and let its "
        "errors end the query. If the batch may stay skipped:",
        walk=(("pass_over", "the batch held test rows"),),
    ),
}
