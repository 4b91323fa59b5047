"""Commands in the remedies of halts: shell lines, each with its effect as a comment.

They are incomplete here. When shown, they get the sink's name and its connections
(`spark_2pc_sink.recovery.recover_command`). The remedies of a halt are ordered from the safest to the last resort, and
their conditions exclude each other.
"""

from __future__ import annotations

from typing import Final

RECOVER: Final = "spark-2pc recover"
VERIFY: Final = "spark-2pc verify"
STATUS: Final = "spark-2pc status"
#: For users who start the job instead of running the command.
ONE_START: Final = "on the sink, for one start"


def remedy(command: str, change: str) -> str:
    """One remedy with a command.

    Args:
        command: without the sink's name and connections.
        change: the command's effect on each side, and when it is the right one.
    """
    return f"{command}  # {change}"


def compare(what: str, *, batch_id: int | None = None) -> str:
    """The first remedy if a person needs more information: it changes nothing.

    Args:
        what: what to find out.
        batch_id: the batch in question; None for all.
    """
    only = "" if batch_id is None else f" --batch {batch_id}"
    return remedy(f"{VERIFY}{only}", f"changes nothing: compare both sides: {what}")


def drop(batch_id: int | None) -> str:
    """The remedy that gives up the Kafka half of a batch."""
    named = "" if batch_id is None else f" --batch {batch_id}"
    change = "Kafka goes without the batch, or has it all the same: nothing is sent; its rows stay in the table"
    return remedy(f"{RECOVER}{named} --drop", change)


def accept_replay(batch_id: int | None, more: str = "") -> str:
    """The remedy that sends a batch to Kafka as Spark replays it.

    Args:
        batch_id: the batch.
        more: additional effect on consumers.
    """
    named = "" if batch_id is None else f" --batch {batch_id}"
    change = f"Kafka lacks the batch: the next start sends what Spark replays then, whatever it is{more}"
    return remedy(f"{RECOVER}{named} --accept-replay", change)
