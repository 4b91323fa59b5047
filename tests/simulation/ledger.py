"""What persons have accepted: whose words excuse which difference between the two sides, batch by batch.

Only words count, not what the product did after them. Who drops batch 1 has accepted that Kafka lacks batch 1; where
Kafka then lacks batch 2, nobody has accepted that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from tests.simulation.record import Record

KAFKA = "Kafka"
TABLE = "table"


@dataclass
class Ledger:
    """The batches that persons have named, by what they accepted.

    Attributes:
        any_replay: Kafka may have another evaluation than the table (``recover --accept-replay``).
        left_out: both sides may have another evaluation than Spark has now (``accept_replay=True``, ``accept_loss``).
        not_in_kafka: Kafka may lack it (``--drop``, or a status set to done by hand).
        not_in_table: the table may lack it (``accept_loss``).
        written_again: a side may have it so often once more (a status set to owed, batches that only *may* be named).
        gone: what readers of a topic had seen before a person deleted it.
    """

    any_replay: set[int] = field(default_factory=set)
    left_out: set[int] = field(default_factory=set)
    not_in_kafka: set[int] = field(default_factory=set)
    not_in_table: set[int] = field(default_factory=set)
    written_again: Counter[int] = field(default_factory=Counter)
    gone: list[tuple[Record, str]] = field(default_factory=list)

    def seen(self, record: Record) -> Record:
        """The record, without the evaluation that it comes from where any was accepted."""
        return replace(record, version=0) if record.batch_id in self.any_replay else record

    def may_lack(self, side: str, batch_id: int) -> bool:
        """Whether a side may be without the batch."""
        return batch_id in (self.not_in_kafka if side == KAFKA else self.not_in_table)

    def times_max(self, batch_id: int) -> int:
        """How often a side may have a record of the batch."""
        return 1 + self.written_again[batch_id]
