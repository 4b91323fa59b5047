"""The check that a replayed batch is the batch which the sides have; if not, a person decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import HaltCause, HaltError
from spark_2pc_sink.recipe.remedies import accept_replay as accept_replay_command
from spark_2pc_sink.recipe.remedies import drop
from spark_2pc_sink.recipe.replay_decision import FROM_THE_START
from spark_2pc_sink.sink.contract.batch_work import Replay

if TYPE_CHECKING:
    from jdbc_state import StateRow


_CHANGED_JOB = (
    "if topic, key, value, headers, dead_letter_topic, the query or a setting that to_json follows "
    "(spark.sql.session.timeZone, spark.sql.jsonGenerator.ignoreNullFields, spark.sql.legacy.timeParserPolicy) have "
    "changed since: start the job as it was, until this batch is through, and then the new one"
)


def check_resend(row: StateRow, replay: Replay, *, accept_replay: int | None) -> str:
    """A resend must be what the database has.

    Args:
        row: of the owed batch.
        replay: what Spark has now.
        accept_replay: the sink's option: the batch that a person has named.

    Returns:
        What of it was accepted because a person had named it; '' where it is the same batch.

    Raises:
        HaltError: it is another batch.
    """
    return _check(
        row,
        replay,
        accept_replay,
        accepted=f"sends batch {row.batch_id} to Kafka as it is now",
        cause=HaltCause.RESEND_DIFFERS,
        kafka_side=f"its records were aborted there, and what Spark replays now is {replay}",
        reason="the replay of the owed batch is not the batch that the database has",
        remedies=(
            _CHANGED_JOB,
            accept_replay_command(row.batch_id),
            drop(row.batch_id),
        ),
    )


def check_skip(row: StateRow, replay: Replay, *, accept_replay: int | None) -> str:
    """A skipped batch must be the one that both sides have: else rows that no side has would be lost without a word.

    Spark plans a batch anew under an id that it has used where its checkpoint was set back by one batch. The rows in it
    may then be others. A job may call the sink twice for one batch, with a part of the rows each time. And rows that
    both sides have may come as others: the sink's expressions were changed while it was down, or they depend on the
    order in which Spark meets rows, as first(), collect_list() and sums of floating-point numbers do.

    Args:
        row: of the batch that both sides have.
        replay: what Spark has now.
        accept_replay: the sink's option: the batch that a person has named.

    Returns:
        What of it was accepted because a person had named it; '' where it is the same batch.

    Raises:
        HaltError: it is another batch.
    """
    return _check(
        row,
        replay,
        accept_replay,
        accepted=f"leaves out batch {row.batch_id} as it is now",
        cause=HaltCause.REPLAY_DIFFERS,
        kafka_side=f"it has the same batch, and what Spark has under this id now is {replay}",
        reason="both sides have a batch of this id, and it is not the one that came now: the checkpoint was set "
        "back or emptied (as by a full refresh), the source or an expression has changed, rows depend on the order in "
        "which Spark meets them, or the sink was called twice for one batch",
        remedies=(
            _CHANGED_JOB,
            "restore the checkpoint, or the database, that belongs to the other one",
            f"accept_replay={row.batch_id} on the sink: keep what both sides have, and leave this batch out",
            "for two parts of one stream use two sinks, each with a transactional_id of its own",
            *(FROM_THE_START if row.batch_id == 0 else ()),
        ),
    )


def _check(row: StateRow, replay: Replay, accept_replay: int | None, *, accepted: str, **halt: Any) -> str:
    """Let the batch of the row pass, and with a warning the one that a person has named; halt at any other.

    Returns:
        What was accepted, in a sentence; '' where nothing had to be.
    """
    recorded = Replay(row.record_count, row.digest)
    # An empty digest of records was accepted by a person, whatever comes.
    if replay == recorded or (recorded.digest == "" and recorded.record_count > 0):
        return ""
    if accept_replay is None or accept_replay != row.batch_id:
        database_side = f"batch {row.batch_id} with {recorded}"
        raise HaltError(transactional_id=row.transactional_id, database_side=database_side, **halt)
    did = f"accept_replay={row.batch_id} {accepted}, with {replay}; the database has it with {recorded}"
    sink_log(__name__, row.transactional_id).warning("%s", did)
    return did
