"""Readers of a sink's topics: which transactions of other producers block them.

read_committed consumers are blocked at the oldest open transaction of a partition. A hanging one never ends; one that
its coordinator knows is ended by its owner, or by its timeout unless it has two-phase commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError
from spark_2pc_sink.ids import TransactionState
from spark_2pc_sink.runbook.picture import OpenElsewhere, Readers
from spark_2pc_sink.transactions import HangingTransaction, ListFilter, TransactionTool

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: Other producers always have open transactions; one that lasts longer than this is worth a look.
OPEN_MS_MIN: Final = 60_000


def look_at_readers(tool: TransactionTool, topics: Collection[str], *, transactional_id: str) -> Readers:
    """Look for transactions of other producers that block consumers of some topics; changes nothing.

    Args:
        tool: asks the cluster.
        topics: the sink's topics.
        transactional_id: the sink's id, whose own transaction is excluded.
    """
    hanging: tuple[HangingTransaction, ...] = ()
    waiting: list[OpenElsewhere] = []
    try:
        for topic in sorted(topics):
            hanging += tool.find_hanging(topic=topic)
        waiting += _waiting(tool, topics, transactional_id)
    except (KafkaError, KafkaTimeoutError) as error:
        # The sink itself was read; a failure to read the other transactions is reported, and is not fatal.
        return Readers(hanging, tuple(waiting), problem=f"whether readers stand still was not looked up: {error}")
    return Readers(hanging, tuple(waiting))


def _waiting(tool: TransactionTool, topics: Collection[str], own: str) -> Iterator[OpenElsewhere]:
    """Open transactions of other ids, as their coordinators know them."""
    for listed in tool.list_transactions(
        ListFilter(states=(TransactionState.ONGOING.value,), running_longer_than_ms=OPEN_MS_MIN)
    ):
        if listed.transactional_id == own:
            continue
        details = tool.describe(listed.transactional_id)
        here = tuple(str(partition) for partition in details.partitions if partition.topic in topics)
        if here:
            yield OpenElsewhere(
                transactional_id=details.transactional_id,
                producer_id=details.producer_id,
                partitions=here,
                never_expires=details.two_phase_commit,
            )
