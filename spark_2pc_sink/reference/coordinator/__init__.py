"""The reference transaction coordinator, pure: KIP-98, KIP-890, KIP-664 and KIP-939 as data and functions.

It holds no socket, clock or file. A shell feeds it events and the time, appends the records that it plans, and sends
the replies that it gives; the order is in `plans`. What it answers is what Apache Kafka 4.4.0 answers, and with
`Profile.KEEP_PREPARED` or `Profile.KEEP_UNCHANGED` also what no released Kafka does: InitProducerId keeps a prepared
transaction (KIP-939).

Reading order: `states` (what a transactional id can be, and the table of transitions), `init_producer_id` and `end_txn`
(the two grids; timeouts and markers), `add_partitions`; then `plans` and `machine` (how a change becomes durable, what
a restart reads back, queries), `records` (bytes of the log). `leader_answers` belongs to partition leaders, which pass
the coordinator's codes on.
"""

from __future__ import annotations

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.coordinator_state import CoordinatorState, ProducerIdBlock, Profile, Settings
from spark_2pc_sink.reference.coordinator.end_txn import due_expirations, due_timeouts
from spark_2pc_sink.reference.coordinator.events import (
    Access,
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    DescribeTransactions,
    EndTxn,
    Event,
    InitProducerId,
    ListTransactions,
    MarkersAnswered,
    ProducerIdBlockAllocated,
)
from spark_2pc_sink.reference.coordinator.machine import (
    Settled,
    apply,
    finish_loading,
    redrive,
    replay,
    reserve,
    resign,
    settle,
    start_loading,
    step,
    unrecorded,
)
from spark_2pc_sink.reference.coordinator.plans import AllocateProducerIdBlock, Plan, SendMarkers, StepNext
from spark_2pc_sink.reference.coordinator.records import LogRecord
from spark_2pc_sink.reference.coordinator.states import TransactionMetadata, TransactionState

__all__ = [
    "Access",
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "AllocateProducerIdBlock",
    "Code",
    "CoordinatorState",
    "DescribeTransactions",
    "EndTxn",
    "Event",
    "InitProducerId",
    "ListTransactions",
    "LogRecord",
    "MarkersAnswered",
    "Plan",
    "ProducerIdBlock",
    "ProducerIdBlockAllocated",
    "Profile",
    "SendMarkers",
    "Settings",
    "Settled",
    "StepNext",
    "TransactionMetadata",
    "TransactionState",
    "apply",
    "due_expirations",
    "due_timeouts",
    "finish_loading",
    "redrive",
    "replay",
    "reserve",
    "resign",
    "settle",
    "start_loading",
    "step",
    "unrecorded",
]
