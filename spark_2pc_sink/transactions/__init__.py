"""Transactions of a whole cluster, for operators: inspect them, find hanging ones, and end those (KIP-664).

Call `TransactionTool`; ``spark-2pc transactions`` calls it with the flags of ``kafka-transactions.sh``.

``spark-2pc transactions --help`` says what to do when read_committed consumers are blocked, because a
partition's last stable offset waits for its oldest open transaction.

Reading order: ``ending``, ``tool``; `spark_2pc_sink.kafka.transaction_queries` has the requests and their results.
"""

from spark_2pc_sink.kafka.transaction_queries import (
    AbortedOpenTransaction,
    HangingTransaction,
    ListFilter,
    ProducerDetails,
    TerminatedTransaction,
    TransactionDetails,
    TransactionListing,
)
from spark_2pc_sink.transactions.tool import TransactionTool

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
