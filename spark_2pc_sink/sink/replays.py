"""Whether a batch that comes again is the one that a side has: if not, a person decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.errors import HaltError
from spark_2pc_sink.sink.batch_work import Replay

if TYPE_CHECKING:
    from jdbc_state import StateRow


def check_resend(row: StateRow, accept_replay: bool, replay: Replay) -> None:  # noqa: FBT001 - an option of the sink
    """A resend must be what the database has.

    Args:
        row: of the owed batch.
        accept_replay: the sink's option.
        replay: what Spark has now.

    Raises:
        HaltError: it is another batch.
    """
    recorded = _recorded(row)
    if not _is_replay(recorded, accept_replay, replay):
        raise HaltError(
            transactional_id=row.transactional_id,
            database_side=f"batch {row.batch_id} with {recorded}",
            kafka_side=f"its records were aborted there, and what Spark replays now is {replay}",
            reason="the replay of the owed batch is not the batch that the database has",
            remedies=(
                "spark-2pc recover --accept-replay: send to Kafka what Spark replays now",
                "spark-2pc recover --drop: leave Kafka without this batch",
            ),
        )


def check_skip(row: StateRow, accept_replay: bool, replay: Replay) -> None:  # noqa: FBT001 - an option of the sink
    """What is skipped must be what both sides have: else rows that no side has would be lost without a word.

    Spark plans a batch anew under an id that it has used where its checkpoint was set back by one batch. The rows in it
    may then be others. And a job may call the sink twice for one batch, with a part of the rows each time.

    Args:
        row: of the batch that both sides have.
        accept_replay: the sink's option.
        replay: what Spark has now.

    Raises:
        HaltError: it is another batch.
    """
    recorded = _recorded(row)
    if not _is_replay(recorded, accept_replay, replay):
        raise HaltError(
            transactional_id=row.transactional_id,
            database_side=f"batch {row.batch_id} with {recorded}",
            kafka_side=f"it has the same batch, and what Spark has under this id now is {replay}",
            reason="both sides have a batch of this id, and it is not the one that came now: the checkpoint was set "
            "back, the source has changed, or the sink was called twice for one batch",
            remedies=(
                "restore the checkpoint, or the database, that belongs to the other one",
                "accept_replay=True on the sink (once): keep what both sides have, and leave this batch out",
                "for two parts of one stream use two sinks, each with a transactional_id of its own",
            ),
        )


def _recorded(row: StateRow) -> Replay:
    return Replay(row.record_count, row.digest)


def _is_replay(recorded: Replay, accept_replay: bool, replay: Replay) -> bool:  # noqa: FBT001 - see above
    """True for the same batch. An empty digest of records was accepted by a person, whatever comes."""
    accepted = accept_replay or (recorded.digest == "" and recorded.record_count > 0)
    return accepted or replay == recorded
