"""Problems of a sink that halt nothing, and choices that they share with those that do."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from spark_2pc_sink.choices.choice import BATCH, UNCHANGED, Act, Choice, Entry, OperatorDecision


class Symptom(str, Enum):
    """A problem, or its absence, that halts nothing. The value is its heading in RUNBOOK.md."""

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
    READERS_BLOCKED = "readers_blocked"
    OTHER_QUERY = "other_query"


#: Options that locate the state rows.
PLACES: Final = "--state-schema, --state-table and --database"
#: A step that begins so gets the cluster when it is shown (`spark_2pc_sink.runbook.sides`).
FORCE_TERMINATE: Final = "spark-2pc transactions force-terminate"
CALL_AGAIN: Final = "call the runbook again"
NEW_NAME: Final = "use a new checkpoint, and a new query_name if the sink has one"

_RECHECK: Final = Choice(name="again", title="check again in a moment: a running batch ends by itself", act=Act.RECHECK)
_START: Final = Choice(
    name="start_job",
    title="start the job unchanged: it completes what is left",
    kafka="the records of the owed batch are sent again",
    database="the state row says done",
    steps=("start the job with the same checkpoint, database and options",),
)
_SETTLE: Final = Choice(
    name="settle",
    title="end the batch as the database has decided",
    kafka="{kafka}",
    database="{database}",
    act=Act.RECOVER,
    automatic=True,
)
ACCEPT_REPLAY: Final = Choice(
    name="accept_replay",
    title="send batch {batch} again as Spark replays it: the topic lacks it",
    kafka="the next start of the job sends the replay of the batch",
    database="the state row says owed, and accepts any replay of this batch",
    act=Act.RECOVER,
    options={"batch": BATCH, "decision": OperatorDecision.ACCEPT_REPLAY},
    accepts="the records that are sent may differ from the rows in the table",
)
DROP: Final = Choice(
    name="drop",
    title="count batch {batch} as done: the topic has it, or may lack it",
    kafka="nothing is sent",
    database="the state row says done; the rows of the batch stay in the table",
    act=Act.RECOVER,
    options={"batch": BATCH, "decision": OperatorDecision.DROP},
    accepts="the topic lacks the batch, unless it has its records already",
)
NEW_CHECKPOINT: Final = Choice(
    name="new_checkpoint",
    title="keep what both sides have, and continue after it with a new checkpoint",
    database="the state row belongs to the new query",
    options={"adopt": True},
    steps=("start the source after what both sides have (startingOffsets)", NEW_NAME),
    accepts="earlier data of the source is not written again",
    on_sink=True,
)
OWN_CLUSTER: Final = Choice(
    name="own_cluster",
    title="use the cluster that the state row names, and recover the sink there first",
    steps=("pass the address of that cluster, to the job and to this command",),
)
ADOPT: Final = Choice(
    name="adopt",
    title="assign the state row to this cluster",
    kafka="the id gets a new epoch here; an open transaction in the old cluster stays open",
    database="the state row names this cluster; its last batch stays as it is",
    act=Act.RECOVER,
    options={"adopt": True},
    accepts="this cluster has batches of the old one only if they were copied",
    unless="decided",
)


def restoring(title: str, *steps: str) -> Choice:
    return Choice(name="restore", title=title, database="as the backup has it", steps=(*steps, CALL_AGAIN))


def _out_of_reach(side: str, meaning: str, check: str, advice: str) -> Entry:
    repair = Choice(
        name="repair",
        title=f"make {side} reachable again; the other side is not changed until then",
        steps=(check, CALL_AGAIN),
    )
    return Entry(
        title=f"{side} cannot be reached",
        meaning=meaning,
        choices=(repair, replace(_RECHECK, title="check again in a moment")),
        advice=advice,
        walk=(("repair", ""),),
    )


SYMPTOMS: Final[dict[Symptom, Entry]] = {
    Symptom.NOTHING_WRONG: Entry(
        title="nothing is wrong",
        meaning="Both sides agree about the last batch, and no other transaction blocks the readers of its topics.",
        advice="The runbook says so and ends. If the job has stopped nevertheless, call it with the line of the job's "
        "error: `--cause 'LINE'` finds the section for it. If it has compared topic and table, and they differ, "
        "[`spark-2pc verify`](docs/verify.md) names each difference, and with `--write-missing DIR` writes what "
        "either side lacks in a form that it accepts.",
    ),
    Symptom.DRIVER_ALIVE: Entry(
        title="in doubt, and the driver is or may be running",
        meaning="A batch is in progress. A running driver ends it by itself, so this is an incident only if it lasts.",
        choices=(
            replace(_RECHECK, title="wait, and check again in a moment: the driver ends its batch by itself"),
            Choice(
                name="stop_job",
                title="stop the job first, if it makes no progress, and check again",
                steps=("stop the job with its scheduler", CALL_AGAIN),
            ),
            replace(
                _SETTLE,
                name="take_over",
                title="stop the driver from here and settle the batch (in Python take_over=True)",
                database="{database}; the driver can no longer decide, and its job ends with SupersededError",
                options={"take_over": True},
                automatic=False,
            ),
        ),
        advice="Check a few times. If the same batch stays, the job's log shows what it waits for; stop the job with "
        "its scheduler, and call the runbook again. `take_over` stops the driver from here.",
        walk=(("again", ""), ("stop", "")),
    ),
    Symptom.IN_DOUBT: Entry(
        title="in doubt, and no driver is running",
        meaning="A driver died during a batch. The state row says how the batch ends, so there is a safe automatic "
        "answer.",
        choices=(
            Choice(
                name="start_job",
                title="start the job: it ends the batch in the same way before its next one",
                kafka="{kafka}",
                database="{database}",
                steps=("start the job",),
            ),
            _SETTLE,
        ),
        advice="Starting the job does the same as `settle`.",
        walk=(("settle", ""),),
        more="Without questions, by a scheduler:\n\n```console incident=in_doubt way=yes\n"
        "$ spark-2pc runbook … --transactional-id ID --yes\n```\n\nWithout the runbook, the same step by step: look, "
        "settle, compare, and see what was done.\n\n```console incident=in_doubt way=by_hand\n"
        "$ spark-2pc status … --transactional-id ID\n$ spark-2pc recover … --transactional-id ID\n"
        "$ spark-2pc verify … --transactional-id ID\n$ spark-2pc history --database URL --transactional-id ID\n```",
    ),
    Symptom.OWED: Entry(
        title="Kafka is owed a batch",
        meaning="The table has the rows of the batch, and Kafka has aborted its records. The job sends them again when "
        "it starts.",
        choices=(_START, ACCEPT_REPLAY, DROP),
        advice="Start the job. `accept_replay` is for a source that now gives other rows, `drop` for a job that will "
        "never start again.",
        walk=(("start_job", ""),),
    ),
    Symptom.LOST_ROW: Entry(
        title="the state row is lost, its history exists",
        meaning="The state row was deleted. Its history says what it contained, so it can be restored.",
        choices=(replace(_SETTLE, name="rebuild", title="restore the state row and end what it names"),),
        walk=(("rebuild", ""),),
    ),
    Symptom.NOT_KNOWN: Entry(
        title="no state row and no history",
        meaning="Either the sink has never run, or this is not the database, the schema or the table of its state row.",
        choices=(
            Choice(
                name="other_place",
                title="use the place of the job's state row",
                steps=(f"compare {PLACES} with those of the job",),
            ),
            Choice(
                name="first_start",
                title="start the job: it has never run here",
                kafka="the first batch is written",
                database="the first batch is written, and the state row created",
                steps=("start the job",),
            ),
        ),
        advice="Compare `--database`, `--state-schema` and `--state-table` with the options of the job. If it has "
        "never run, start it.",
        walk=(("first_start", ""),),
    ),
    Symptom.ELSEWHERE: Entry(
        title="the sink belongs to another Kafka cluster",
        meaning="Its state row names another cluster than this one, which knows nothing about the sink.",
        choices=(OWN_CLUSTER, ADOPT),
        advice="Call the runbook with the address of that cluster. If this one has replaced it, go to "
        "[other_cluster](#other_cluster).",
    ),
    Symptom.KAFKA_OUT_OF_REACH: _out_of_reach(
        "Kafka",
        "Kafka did not answer, or refused. A batch that the database has decided stays in doubt until it answers.",
        "check the brokers, the network, --bootstrap-server and the login in --command-config",
        "The job continues by itself when Kafka is back. No decision is needed: check brokers, network, address and "
        "login.",
    ),
    Symptom.DATABASE_OUT_OF_REACH: _out_of_reach(
        "the database",
        "The database did not answer, or refused. Without its state rows it is unknown how a batch ends.",
        "check the server, the network, --database and PGPASSWORD or ~/.pgpass",
        "Bring it back first, in its newest state. A backup that is older than the last batch leads to "
        "[database_behind](#database_behind).",
    ),
    Symptom.UNREADABLE: Entry(
        title="one side has data that this version cannot read",
        meaning="A newer version has written the state row, or it was changed by hand. Other sinks are not affected.",
        choices=(
            Choice(
                name="newer_version",
                title="use the version of spark-2pc-sink that the job uses",
                steps=("install that version", CALL_AGAIN),
            ),
            restoring(
                "restore the row, if it was changed by hand",
                "take the row from a backup, or delete it: it is restored from its history",
            ),
        ),
        advice="Use the version that the job uses: it can read the data.",
    ),
    Symptom.HANGING_TRANSACTION: Entry(
        title="a transaction hangs in a topic",
        meaning="Another producer has left a transaction open that no coordinator will end. read_committed consumers "
        "are blocked by it.",
        choices=(
            Choice(
                name="owner",
                title="do nothing: its owner is known and ends it",
                steps=("find the application by its producer id in its log", "restart it: it ends what it left open"),
            ),
            Choice(
                name="abort",
                title="end it with an abort marker, after every coordinator was asked again",
                kafka="an abort marker is written to {places}: readers continue after it and never get its records",
                act=Act.ABORT_HANGING,
            ),
        ),
        advice="`abort` asks every coordinator again, and refuses if one knows the transaction after all.",
        walk=(("abort", ""),),
    ),
    Symptom.READERS_BLOCKED: Entry(
        title="readers are blocked by a transaction of another producer",
        meaning="The sink is healthy. Another transactional id has an open transaction in its topic, and its "
        "coordinator knows it.",
        choices=(
            Choice(
                name="owner",
                title="have its owner end it: {owners}",
                kafka="the owner commits or aborts its transaction",
                steps=(
                    "restart the application that owns the id",
                    "if the id belongs to a sink: spark-2pc runbook --transactional-id with that id",
                ),
            ),
            _RECHECK,
            Choice(
                name="force_terminate",
                title="have its coordinator abort it, if the owner is gone for good",
                kafka="the open transaction of the id is aborted, and its producer fenced",
                steps=(f"{FORCE_TERMINATE} --transactional-id {{owner}}",),
            ),
        ),
        advice="The runbook names the id. Restart the application that owns it. If it is a sink, call the runbook for "
        "that id. With two-phase commit Kafka never ends it by itself; `force_terminate` shows the command that does, "
        "if the owner is gone for good.",
        walk=(("owner", ""),),
    ),
    Symptom.OTHER_QUERY: Entry(
        title="the state row belongs to another query",
        meaning="The checkpoint is new, or another job has this transactional id.",
        choices=(
            Choice(
                name="own_id",
                title="give each sink its own transactional_id, or use the old checkpoint",
                steps=("set transactional_id, or restore the checkpoint", "start the job"),
            ),
            replace(
                NEW_CHECKPOINT,
                name="adopt",
                title="replace the other query by this one for good: a new checkpoint reads its source from "
                "startingOffsets or a similar option, and writes earlier data to both sides again. Begin after it, or "
                "empty topic and table first",
                steps=(),
            ),
        ),
        says="belongs to query",
        job_only=True,
        walk=(("own_id", ""),),
        advice="Use the old checkpoint, or another id. Only the job sees this: its error names both queries.",
    ),
}

#: What each act of a recovery without a decision changes in Kafka and in the database, by `ActionKind`.
EFFECTS: Final[dict[str, tuple[str, str]]] = {
    "rebuild_row": (UNCHANGED, "the state row is restored from its history"),
    "commit": ("the decided transaction is committed: readers see its records", "the state row says done"),
    "abort": ("the open transaction is aborted: no reader has seen its records", "a new claim of the state row"),
    "note_done": (UNCHANGED, "the state row says done, as Kafka has committed the batch"),
    "note_owed": (UNCHANGED, "the state row says owed, as Kafka has aborted the batch: the job sends it again"),
    "wait": ("recovery waits for the end in progress", "the state row says how it ended"),
}
