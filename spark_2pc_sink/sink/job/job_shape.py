"""How many tasks read a batch, how many send it, and whether the rows of the one have to get to the other."""

from __future__ import annotations

from dataclasses import dataclass

from spark_2pc_sink.sink.job.waves import WAVES


@dataclass(frozen=True)
class JobShape:
    """How a job shares out a batch.

    Attributes:
        exchange: two stages: tasks that read hand over what they encode to tasks that send. Otherwise one stage, each
            task of which sends what it reads.
        readers: how many tasks read, where the input has as many parts.
        senders: how many tasks own partitions, each of them at least one.
    """

    exchange: bool
    readers: int
    senders: int


def shape_of(at_once: int, *, partitions: int | None, chosen: bool, compared: bool = False) -> JobShape:
    """The shape of the job of a batch.

    Args:
        at_once: how many tasks can run at a time.
        partitions: how many Kafka partitions there are to own; None where rows name their topics, which may have any
            number of them.
        chosen: rows choose their partitions, by key for instance. Otherwise any task may write any row.
        compared: tasks that send compare rows with one key, for which they need to be told of all of them first.
    """
    owned = at_once * WAVES if partitions is None else partitions
    # Without a choice of partitions rows need not move, unless there are fewer to own than tasks at a time.
    exchange = compared or (at_once > 1 and (chosen or owned < at_once))
    # Rows of tasks that have ended are written while the second stage runs, or else the next wave of tasks.
    waves = 1 if exchange or at_once == 1 else WAVES
    senders = min(at_once * waves, owned)
    return JobShape(exchange, readers=at_once if exchange else senders, senders=senders)
