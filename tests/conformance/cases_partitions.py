"""AddPartitionsToTxn, of clients and of leaders, and AddOffsetsToTxn: section 2.2."""

from __future__ import annotations

from tests.conformance.cases import table

CASES = table(
    """
    2.2/<state>-v3 <state>:
        add CURRENT.7 shared1 -> OK
        describe -> Ongoing CURRENT 7 [<held>shared1]
    2.2/<state>-v4 <state> tv=12:
        add CURRENT.7 shared1 v4 -> OK
        describe -> Ongoing CURRENT 7 [<held>shared1]
    2.2/<state>-refused <state>:
        {add|add_offsets} CURRENT.{6|8} -> PRODUCER_FENCED
        {add|add_offsets} {UNKNOWN|PREVIOUS}.7 -> INVALID_PRODUCER_ID_MAPPING
    2.2/<state>-offsets <state>: add_offsets CURRENT.7 -> OK
    2.2/<decided>-any-pair <decided> stuck:
        {add|add_offsets} {CURRENT.7|CURRENT.6|UNKNOWN.7} -> CONCURRENT_TRANSACTIONS
        add {CURRENT.7|CURRENT.6|UNKNOWN.7} v5 -> CONCURRENT_TRANSACTIONS
    # verifyOnly: nothing is added, and what is pending is not looked at.
    2.2/<state>-verify <state>:
        verify CURRENT.{6|8} -> PRODUCER_FENCED
        verify UNKNOWN.7 -> INVALID_PRODUCER_ID_MAPPING
        verify CURRENT.7 shared1 -> TRANSACTION_ABORTABLE
        verify CURRENT.7 {v4|v5} -> <verified>
    2.2/ongoing-verify-two ONGOING:
        verify CURRENT.7 shared0 shared1 -> shared0: OK, shared1: TRANSACTION_ABORTABLE
        describe -> Ongoing CURRENT 7 [shared0]
    2.2/<decided>-verify <decided> stuck:
        verify CURRENT.{6|8} -> PRODUCER_FENCED
        verify UNKNOWN.7 -> INVALID_PRODUCER_ID_MAPPING
        verify CURRENT.7 {shared1|v4|v5} -> CONCURRENT_TRANSACTIONS
    2.2/unknown-id:
        {add|add_offsets|verify} UNKNOWN.0 -> INVALID_PRODUCER_ID_MAPPING
        add UNKNOWN.0 v4 -> INVALID_PRODUCER_ID_MAPPING
    2.2/empty-id:
        {add|add_offsets|verify} UNKNOWN.0 tid= -> INVALID_REQUEST
    2.2/already-there ONGOING:
        add CURRENT.7 -> OK
        add CURRENT.7 shared0 shared1 -> OK
        describe -> Ongoing CURRENT 7 [shared0, shared1]
    2.2/fenced-v<1|2|4> ONGOING:
        {add|add_offsets} CURRENT.6 v<1|2|4> -> <INVALID_PRODUCER_EPOCH|PRODUCER_FENCED|PRODUCER_FENCED>
    # What is asked for, rather than by whom.
    2.2/unknown-partition ONGOING:
        add CURRENT.7 shared1 absent0 {v3|v4|v5} -> <absent>
        verify CURRENT.7 shared1 absent0 -> <absent>
        describe -> Ongoing CURRENT 7 [shared0]
    2.2/internal-topic ONGOING:
        add CURRENT.7 shared1 <internal> -> <internal>: TOPIC_AUTHORIZATION_FAILED, shared1: OPERATION_NOT_ATTEMPTED
        describe -> Ongoing CURRENT 7 [shared0]
    2.2/unknown-partition-first ONGOING:
        add {CURRENT|UNKNOWN}.6 absent0 -> UNKNOWN_TOPIC_OR_PARTITION
    2.2/no-partitions-open-a-transaction EMPTY:
        add CURRENT.7 nothing -> nothing
        describe -> Ongoing CURRENT 7 []
    2.2/no-partitions-stale EMPTY:
        add CURRENT.6 nothing -> nothing
        describe -> Empty CURRENT 7 unstarted []
    2.2/leaders-add-any-topic ONGOING tv=2: add CURRENT.7 <internal> v5 -> OK
    2.2/offsets-add-their-partition ONGOING:
        add_offsets CURRENT.7 -> OK
        describe -> Ongoing CURRENT 7 [(__consumer_offsets, 0), shared0]
    1.4/leader-add-on-an-old-log EMPTY tv=0: add CURRENT.7 shared1 v5 -> UNSUPPORTED_VERSION
    """,
    state="<EMPTY|ONGOING|COMPLETE_COMMIT|COMPLETE_ABORT>",
    held="<|shared0, ||>",
    verified="<TRANSACTION_ABORTABLE|OK|TRANSACTION_ABORTABLE|TRANSACTION_ABORTABLE>",
    decided="<PREPARE_COMMIT|PREPARE_ABORT>",
    absent="absent0: UNKNOWN_TOPIC_OR_PARTITION, shared1: OPERATION_NOT_ATTEMPTED",
    internal="__consumer_offsets0",
)
