"""Choices for halts: what a person can decide for each `HaltCause`, the safest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.runbook.choice import Act, Choice, Input, a_batch, a_range
from spark_2pc_sink.runbook.symptoms import Symptom

if TYPE_CHECKING:
    from spark_2pc_sink.runbook.picture import Picture

COMPARE: Final = Choice(
    name="compare", title="compare topic and table before anything is decided; changes nothing", act=Act.COMPARE
)
_OWN_CLUSTER: Final = Choice(
    name="own_cluster",
    title="use the cluster that the state row names",
    steps=("pass the address of that cluster, to the job and to this command",),
)
_ADOPT: Final = Choice(
    name="adopt",
    title="let the state row belong to this cluster from now on",
    kafka="the id gets a new epoch here; what the old cluster holds open stays open there",
    database="the state row names this cluster; its last batch stays as it is",
    act=Act.RECOVER,
    options={"adopt": True},
    accepts="batches of the old cluster are in this one only as far as somebody has copied them",
)
_LOST_RANGE: Final = Input(
    "accept_loss",
    "Which batches does the database lack? As FIRST..LAST, N, or none",
    placeholder="FIRST..LAST",
    parse=a_range,
)
_SKIPPED_RANGE: Final = Input(
    "accept_loss",
    "Which batches are left out? As FIRST..LAST or N; the error of the job names them",
    placeholder="FIRST..LAST",
    parse=a_range,
)
_NEW_NAME: Final = "use a new checkpoint, and a new query_name if the sink has one"
_ON_CHECKPOINT: Final = "the newest batch in the checkpoint's offsets/ that is not in its commits/"


def _by_batch(picture: Picture, decision: OperatorDecision) -> dict[str, Any]:
    """A decision about the batch of the state row, and no other."""
    about = {} if picture.batch_id is None else {"batch": picture.batch_id}
    return {**about, "decision": decision}


def _accept_replay(picture: Picture, when: str, accepts: str = "") -> Choice:
    return Choice(
        name="accept_replay",
        title=f"send the batch again as Spark replays it: {when}",
        kafka="the next start of the job sends the batch as it is now",
        database="the state row says owed, and takes any replay of this batch",
        act=Act.RECOVER,
        options=_by_batch(picture, OperatorDecision.ACCEPT_REPLAY),
        accepts=accepts or "the records that are sent may differ from the rows in the table",
    )


def drop(picture: Picture, when: str) -> Choice:
    """To continue without the Kafka half of the batch of the state row, and of no other."""
    return Choice(
        name="drop",
        title=f"take the batch for done: {when}",
        kafka="nothing is sent",
        database="the state row says done; the rows of the batch stay in the table",
        act=Act.RECOVER,
        options=_by_batch(picture, OperatorDecision.DROP),
        accepts="the topic lacks the batch, unless it had its records all the same",
    )


def _restore(title: str, *steps: str) -> Choice:
    return Choice(
        name="restore", title=title, database="as the backup has it", steps=(*steps, "call the runbook again")
    )


def _pass_over(when: str) -> Choice:
    """To skip batches by name, which only the job can carry out, as it knows the next batch."""
    return Choice(
        name="pass_over",
        title=f"go on without the batches, by one start of the sink: {when}",
        kafka="the next batch is written; what came before stays as it is",
        database="the next batch is written; the state row passes over the batches that are named",
        options={"adopt": True},
        inputs=(_SKIPPED_RANGE,),
        accepts="what one side has of these batches and the other lacks stays so",
        steps=("start the job once with the options below", "take them out again for the start after that"),
        on_sink=True,
    )


def other_cluster(picture: Picture) -> tuple[Choice, ...]:
    """The choices about the state row's cluster; also if nothing has halted for it."""
    del picture
    return (_OWN_CLUSTER, _ADOPT)


def _id_in_use(picture: Picture) -> tuple[Choice, ...]:
    del picture
    adopt = Choice(
        name="adopt",
        title="take the id over: it is this sink's, and the sink begins with its first batch",
        kafka="the id gets a new epoch, which fences whoever uses it",
        database="a new state row without a batch",
        act=Act.RECOVER,
        options={"adopt": True},
        accepts="what either side has under this id stays as it is",
    )
    other = Choice(
        name="other_id",
        title="give this sink another transactional id: another application uses this one",
        steps=("set transactional_id of the sink to a name that nothing else uses", "start the job"),
    )
    restore = _restore(
        "look for the state row where it was, or restore it",
        "compare state_schema, state_table and database with those of the last run of the job",
        "restore the state row, or its history, from a backup",
    )
    return (other, restore, _pass_over("the sink has run, and 0..LAST are the batches of its checkpoint"), adopt)


def _open_transaction(picture: Picture) -> tuple[Choice, ...]:
    del picture
    batch = Input("batch", f"Which batch is it? A number: {_ON_CHECKPOINT}", placeholder="N", parse=a_batch)
    commit = Choice(
        name="commit",
        title="the table HAS the rows of its records: commit it",
        kafka="the open transaction is committed: readers see its records",
        database="a state row that has the batch as done",
        act=Act.RECOVER,
        options={"adopt": True, "open_transaction": "commit"},
        inputs=(batch,),
        accepts="if the table lacks the rows all the same, they are in the topic alone",
    )
    abort = Choice(
        name="abort",
        title="the table has NONE of the rows of its records: abort it",
        kafka="the open transaction is aborted: no reader ever gets its records",
        database="a state row without a batch; the next start asks for the batches before",
        act=Act.RECOVER,
        options={"adopt": True, "open_transaction": "abort"},
        accepts="if the table has the rows all the same, they are in the table alone",
    )
    restore = _restore("restore the state row or its history", "restore it from a backup that is newer than the batch")
    return (restore, COMPARE, commit, abort)


def _database_behind(picture: Picture) -> tuple[Choice, ...]:
    del picture
    newest = _restore("restore the newest backup, or promote the newest standby", "restore the database")
    accept = Choice(
        name="accept_loss",
        title="go on without the batches that the database lacks",
        kafka="the id gets a new epoch; the records of the batches stay, and are not sent again",
        database="the state row has the last of the batches as done; put their rows back by hand, or give them up",
        act=Act.RECOVER,
        options={"adopt": True},
        inputs=(_LOST_RANGE,),
        accepts="the topic has batches that the table lacks",
    )
    return (newest, COMPARE, accept)


def _commits_lost(picture: Picture) -> tuple[Choice, ...]:
    del picture
    start = Choice(
        name="start_job",
        title="start the job: it looks whether a batch is missing, and halts with database_behind if one is",
        kafka="nothing, unless both sides agree: then the next batch",
        database="a new claim; the next batch, if both sides agree",
        steps=("start the job", "if it halts: call the runbook again"),
    )
    newest = _restore("promote the standby that has the commits, if there is one", "make that one the primary")
    return (newest, COMPARE, start)


def _outcome_lost(picture: Picture) -> tuple[Choice, ...]:
    readable = Choice(
        name="make_readable",
        title="make the partitions readable, if they are there: their broker, the permission to READ",
        steps=("bring the brokers of the partitions back, or grant READ", "call the runbook again"),
    )
    return (
        readable,
        COMPARE,
        _accept_replay(picture, "Kafka lacks it"),
        drop(picture, "Kafka has it, or is to go without it"),
    )


def _topic_remade(picture: Picture) -> tuple[Choice, ...]:
    return (
        COMPARE,
        _accept_replay(
            picture,
            "Kafka lacks it (create a topic that is gone first)",
            "a topic that still has the batch gets it twice, and the replay may differ from the rows in the table",
        ),
        drop(picture, "Kafka is to go without it, or has it all the same"),
    )


def _not_the_first(picture: Picture) -> tuple[Choice, ...]:
    del picture
    back = Choice(
        name="change_back",
        title="change transactional_id, state_schema, state_table or database back: the row is where it was",
        steps=("compare them with those of the last run", "start the job with those"),
    )
    restore = _restore("restore the checkpoint or the state row that belongs to the other", "restore it")
    return (back, restore, COMPARE, _pass_over("the row cannot be had again"))


def _gap(picture: Picture) -> tuple[Choice, ...]:
    del picture
    restore = _restore(
        "restore the newer of the two: the state row where the batch is too new, the checkpoint where it is too old",
        "restore it",
    )
    fresh = _new_query("the checkpoint is older and cannot be had again: a new one, behind what both sides have")
    return (restore, COMPARE, fresh, _pass_over("the state row is older and cannot be had again"))


def _new_query(title: str) -> Choice:
    return Choice(
        name="new_checkpoint",
        title=title,
        database="the state row belongs to the new query",
        options={"adopt": True},
        steps=(
            "start the source behind what both sides have (startingOffsets)",
            _NEW_NAME,
            "start once with the options below",
        ),
        accepts="what the source has before that place is not written again",
        on_sink=True,
    )


def _batches_restarted(picture: Picture) -> tuple[Choice, ...]:
    del picture
    restore = _restore("an old backup of the checkpoint was restored: restore the newest one", "restore it")
    again = Choice(
        name="write_again",
        title="the refresh was meant: empty both sides, and write everything the source has again",
        kafka="batches are written from 0 on",
        database="the state row belongs to the new query; batches are written from 0 on",
        options={"adopt": True},
        steps=(
            "empty the table, and delete the records of the topic",
            _NEW_NAME,
            "start once with the options below",
        ),
        accepts="what is left in topic and table is there twice then",
        on_sink=True,
    )
    return (restore, COMPARE, _new_query("keep what both sides have, and go on after it in a new checkpoint"), again)


def _other_batch_owed(picture: Picture) -> tuple[Choice, ...]:
    right = _restore("use the checkpoint whose batch Kafka is owed", "start the job with that checkpoint")
    return (right, drop(picture, "its checkpoint is gone"))


def _resend_differs(picture: Picture) -> tuple[Choice, ...]:
    return (
        _old_job(),
        _accept_replay(picture, "the old rows cannot be had again"),
        drop(picture, "Kafka is to go without it"),
    )


def _old_job() -> Choice:
    return Choice(
        name="old_job",
        title="start the job as it was before its change, until the batch is through",
        kafka="the batch is sent as it was, if Kafka is owed it",
        steps=("undo the change of query, expressions or Spark's settings", "start the job", "then start the new one"),
    )


def _replay_differs(picture: Picture) -> tuple[Choice, ...]:
    keep = Choice(
        name="keep",
        title="keep what both sides have, and leave out what came now, by one start of the sink",
        options={} if picture.batch_id is None else {"accept_replay": picture.batch_id},
        accepts="rows that came only in the replay are on neither side",
        steps=("start the job once with the option below", "take it out again for the start after that"),
        on_sink=True,
    )
    restore = _restore("restore the checkpoint, or the database, that belongs to the other", "restore it")
    return (_old_job(), restore, keep)


def _not_handed_over(picture: Picture) -> tuple[Choice, ...]:
    del picture
    call = Choice(
        name="call_the_sink",
        title="have the function call the sink for every batch, and let its errors end the query",
        steps=("correct the function", "restore the checkpoint as it was before the batch, or use pass_over"),
    )
    return (call, _pass_over("the batches had no rows, or may be left out on both sides"))


HALT_CHOICES: Final[dict[Symptom, Callable[[Picture], tuple[Choice, ...]]]] = {
    Symptom.OTHER_CLUSTER: other_cluster,
    Symptom.ID_IN_USE: _id_in_use,
    Symptom.OPEN_TRANSACTION: _open_transaction,
    Symptom.DATABASE_BEHIND: _database_behind,
    Symptom.COMMITS_LOST: _commits_lost,
    Symptom.OUTCOME_LOST: _outcome_lost,
    Symptom.TOPIC_REMADE: _topic_remade,
    Symptom.NOT_THE_FIRST_BATCH: _not_the_first,
    Symptom.GAP: _gap,
    Symptom.BATCHES_RESTARTED: _batches_restarted,
    Symptom.OTHER_BATCH_OWED: _other_batch_owed,
    Symptom.RESEND_DIFFERS: _resend_differs,
    Symptom.REPLAY_DIFFERS: _replay_differs,
    Symptom.NOT_HANDED_OVER: _not_handed_over,
}
