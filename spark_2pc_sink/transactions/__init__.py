"""Transactions of a whole cluster, for operators: look at them, find those that hang, and end those (KIP-664).

Call `TransactionTool`; ``spark-2pc transactions`` calls it with the flags of ``kafka-transactions.sh``.

**When readers of committed data stand still.** A partition's last stable offset waits for its oldest open transaction.

1. ``find-hanging`` asks the leader of every partition for open transactions, and then the coordinators for those that
   have been open too long. A transaction that its coordinator will still end is not hanging, however old it is: one
   with two-phase commit may stay open for days (KIP-939). What is left is open for ever.
2. ``abort`` ends a hanging transaction with a marker in that one partition. It refuses where the coordinator knows the
   transaction: the marker would be written behind its back, and its producer could still "commit" what readers have
   skipped already.
3. ``force-terminate`` is the way for those: the coordinator itself aborts, in every partition, and fences the
   producer. If the transaction belongs to a sink of this package whose database had decided it, Kafka is owed that
   batch: run ``spark-2pc status`` before, and ``spark-2pc recover`` after it.

Reading order: ``values``, ``queries`` with ``asking`` (what is asked of brokers), ``hanging``, ``ending``, ``tool``.
"""

from spark_2pc_sink.transactions.tool import TransactionTool
from spark_2pc_sink.transactions.values import (
    AbortedOpenTransaction,
    HangingTransaction,
    ListFilter,
    ProducerDetails,
    TerminatedTransaction,
    TransactionDetails,
    TransactionListing,
)

__all__ = [
    "AbortedOpenTransaction",
    "HangingTransaction",
    "ListFilter",
    "ProducerDetails",
    "TerminatedTransaction",
    "TransactionDetails",
    "TransactionListing",
    "TransactionTool",
]
