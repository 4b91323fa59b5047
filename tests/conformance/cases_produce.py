"""Produce: what the leader asks the coordinator, and what it checks itself; sections 3.1 to 3.3.

The version of Produce says what the leader does: from 12 on it adds the partition, below it verifies; 10 and below are
old clients.
"""

from __future__ import annotations

from tests.conformance.cases import table

_SEVERAL = "INVALID_PRODUCER_ID_MAPPING; Transactional records contained more than one producer ID"
_NO_KEY = "Compacted topic cannot accept message without key in topic partition compacted-0"
_KEYLESS = (
    "INVALID_RECORD; One or more records have been rejected due to 1 record errors in total, and only showing the "
    f"first three errors at most: [RecordError(batchIndex=0, message='{_NO_KEY}')]; 0 {_NO_KEY}"
)
_UNVERIFIED = (
    "NOT_ENOUGH_REPLICAS; Unable to verify the partition has been added to the transaction. "
    "Underlying error: CONCURRENT_TRANSACTIONS"
)
_NOT_ADDED = "INVALID_TXN_STATE; Partition was not added to the transaction"

#: 3.1. Most faults of a batch are found when it is appended: after the coordinator was asked.
_FRONT_DOOR = table(
    """
    3.1/transactional-without-id new:
        produce NEW.0 #0 {|broken|v9} tid=none -> TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    3.1/control-batch new tv=12:
        produce NEW.0 {#0|} control -> INVALID_RECORD
        describe -> Ongoing NEW 0 [here0]
    3.1/broken-checksum-in-a-transaction new tv=12:
        produce NEW.0 #0 broken -> CORRUPT_MESSAGE
        describe -> Ongoing NEW 0 [here0]
        producers -> nobody
        produce NEW.0 #0 -> @0
    # Without an epoch: a producer whose sequences nobody counts.
    3.1/negative-epoch new:
        produce NEW.-1 #0 v9 -> INVALID_PRODUCER_EPOCH
        plain CURRENT.-1 #0 -> @0
        plain CURRENT.-1 #2 -> @1
        plain CURRENT.0 #5 -> @2
        plain CURRENT.0 #7 -> OUT_OF_ORDER_SEQUENCE_NUMBER
        plain CURRENT.-1 #3 -> INVALID_PRODUCER_EPOCH
    3.1/negative-sequence: plain CURRENT.0 -> INVALID_RECORD
    3.1/two-batches: plain CURRENT.0 #0 batches=2 -> INVALID_RECORD
    3.1/broken-checksum: plain broken -> CORRUPT_MESSAGE
    3.1/two-pairs new:
        produce NEW.0 #0 + NEW.1 #0 here1 -> <several>
        describe -> Empty NEW 0 unstarted []
    3.1/two-ids new: produce NEW.0 #0 + UNKNOWN.0 #0 here1 -> <several>
    3.1/unknown-topic new: produce NEW.0 #0 absent0 v9 -> UNKNOWN_TOPIC_OR_PARTITION
    3.1/no-producer-id:
        plain -> @0
        plain x3 -> @1
        producers -> nobody
    3.1/plain-batch-with-an-id new:
        plain tid=@T -> @0
        describe -> Empty NEW 0 unstarted []
    # Every record needs a key, and no clock may be far ahead. Without a key a record is looked at no further.
    3.1/compacted-without-a-key:
        plain {|CURRENT.0 #5|CURRENT.-1 #5} compacted0 -> <keyless>
        delete_records compacted0 offset={-1|9} -> POLICY_VIOLATION
    3.1/compacted-without-a-key-and-out-of-range: plain compacted0 now_ms=1125899906842624 -> <keyless>
    3.1/time-out-of-range:
        plain x2 now_ms=1125899906842624 -> INVALID_TIMESTAMP
            One or more records have been rejected due to invalid timestamp
            0 Timestamp … of message with offset 0 is out of range. The timestamp should be within […, …]
            1 Timestamp … of message with offset 1 is out of range. The timestamp should be within […, …]
    """,
    several=_SEVERAL,
    keyless=_KEYLESS,
)

#: 3.2: the answer of the coordinator, as each version of Produce passes it on. At level 0 the log cannot hold what an
#: adding client does. An epoch older than the leader's is refused without a question; the same is not asked for twice.
_ASKED = table(
    """
    3.2/v<version>-stale EMPTY <levels>: produce CURRENT.6 #0 v<version> -> INVALID_PRODUCER_EPOCH
    3.2/v<version>-ahead EMPTY <levels>: produce CURRENT.8 #0 v<version> -> INVALID_PRODUCER_EPOCH
    3.2/v<version>-unknown-producer-id EMPTY <levels>: produce UNKNOWN.7 #0 v<version> -> INVALID_PRODUCER_ID_MAPPING
    3.2/v<version>-unknown-id <levels>: produce UNKNOWN.7 #0 v<version> -> INVALID_PRODUCER_ID_MAPPING
    3.2/v<version>-decided-commit PREPARE_COMMIT stuck <levels>: produce CURRENT.7 #0 v<version> -> <pending>
    3.2/v<version>-decided-abort PREPARE_ABORT stuck <levels>: produce CURRENT.7 #0 v<version> -> <pending>
    3.2/v<version>-added EMPTY <levels>:
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #0 v<version> -> @0
        producers -> CURRENT 7 sequence=0 coordinator=-1 open=0
    3.2/v<version>-one-of-two-added EMPTY <levels>:
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #0 v<version> + CURRENT.7 #0 here1 -> <both>
    3.2/v<version>-known-to-the-leader new tv=12:
        add NEW.0 here0 -> OK
        produce NEW.0 #0 v<version> -> @0
        produce NEW.0 #1 v<version> -> @1
        abort NEW.0 -> NEW 1
        produce NEW.0 #{2|0} v<version> -> INVALID_PRODUCER_EPOCH
    3.2/v12-not-added-<state> <state> tv=12:
        produce CURRENT.7 #0 -> @0
        describe -> Ongoing CURRENT 7 [here0<|, shared0||>]
    3.2/v11-not-added-<state> <state>:
        produce CURRENT.7 #0 v11 -> TRANSACTION_ABORTABLE
        latest uncommitted -> @0
    3.2/v9-not-added-<state> <state>:
        produce CURRENT.7 #0 v9 -> <not added>
        latest uncommitted -> @0
    """,
    **{"not added": _NOT_ADDED},
    both=f"<@0|here0: @0, here1: TRANSACTION_ABORTABLE|here0: @0, here1: {_NOT_ADDED}>",
    version="<12|11|9>",
    levels="<tv=12||>",
    pending=f"<CONCURRENT_TRANSACTIONS|{_UNVERIFIED}|{_UNVERIFIED}>",
    state="<EMPTY|ONGOING|COMPLETE_COMMIT|COMPLETE_ABORT>",
)

_IMPLICIT = table("""
    3.2/implicit-add-to-open new tv=12:
        produce NEW.0 #0 -> @0
        produce NEW.0 #0 here1 -> @0
        describe -> Ongoing NEW 0 [here0, here1]
    3.2/unknown-topic-beside-a-known-one new tv=12:
        produce NEW.0 #0 + NEW.0 #0 absent0 -> absent0: UNKNOWN_TOPIC_OR_PARTITION, here0: @0
        describe -> Ongoing NEW 0 [here0]
    3.2/implicit-add-after-the-end new tv=12:
        produce NEW.0 #0 -> @0
        commit NEW.0 -> NEW 1
        produce NEW.1 #0 -> @2
        describe -> Ongoing NEW 1 [here0]
    3.2/implicit-add-on-an-old-log new tv=0: produce NEW.0 #0 -> UNSUPPORTED_VERSION
    3.2/fenced-by-a-second-producer new tv=12:
        produce NEW.0 #0 -> @0
        init -> CONCURRENT_TRANSACTIONS
        produce NEW.0 #1 -> INVALID_PRODUCER_EPOCH
        init -> NEW 2
        produce {NEW.0 #1|NEW.1 #0} -> INVALID_PRODUCER_EPOCH
        produce NEW.2 #0 -> @2
    """)

#: 3.3 for producers without transactions: sequences, epochs, and sequences that begin again.
_PLAIN = table("""
    3.3/duplicate:
        plain CURRENT.0 #0 x2 -> @0
        plain CURRENT.0 #2 -> @2
        plain CURRENT.0 #0 x2 -> @0 again
        latest uncommitted -> @3
    3.3/duplicate-of-the-<fifth|sixth>-last:
        plain CURRENT.0 #0 -> @0
        plain CURRENT.0 #1 -> @1
        plain CURRENT.0 #2 -> @2
        plain CURRENT.0 #3 -> @3
        plain CURRENT.0 #4 -> @4
        plain CURRENT.0 #5 -> @5
        plain CURRENT.0 #<1|0> -> <@1 again|OUT_OF_ORDER_SEQUENCE_NUMBER>
        plain CURRENT.0 #5 -> @5 again
    3.3/overlap:
        plain CURRENT.0 #0 x3 -> @0
        plain CURRENT.0 {#1 x2|#2 x3|#0 x4} -> OUT_OF_ORDER_SEQUENCE_NUMBER
    3.3/gap:
        plain CURRENT.0 #0 -> @0
        plain CURRENT.0 #2 -> OUT_OF_ORDER_SEQUENCE_NUMBER
        plain CURRENT.0 #1 -> @1
    3.3/any-first-sequence:
        plain CURRENT.3 #17 -> @0
        plain CURRENT.3 #18 -> @1
        producers -> CURRENT 3 sequence=18 coordinator=-1 open=-1
    3.3/older-epoch:
        plain CURRENT.3 #0 -> @0
        plain CURRENT.2 #{0|1} -> INVALID_PRODUCER_EPOCH
    3.3/newer-epoch-from-zero:
        plain CURRENT.3 #0 -> @0
        plain CURRENT.4 #0 -> @1
        plain CURRENT.4 #1 -> @2
        producers -> CURRENT 4 sequence=1 coordinator=-1 open=-1
    3.3/newer-epoch-not-from-zero:
        plain CURRENT.3 #0 -> @0
        plain CURRENT.4 #1 -> OUT_OF_ORDER_SEQUENCE_NUMBER
        plain CURRENT.3 #1 -> @1
    3.3/sequences-begin-again:
        plain CURRENT.0 #2147483647 -> @0
        plain CURRENT.0 #0 -> @1
    3.3/sequences-begin-again-in-a-batch:
        plain CURRENT.0 #2147483647 x2 -> @0
        plain CURRENT.0 #1 -> @2
        producers -> CURRENT 0 sequence=1 coordinator=-1 open=-1
    3.3/zero-only-after-the-last:
        plain CURRENT.0 #2147483646 -> @0
        plain CURRENT.0 #0 -> OUT_OF_ORDER_SEQUENCE_NUMBER
        plain CURRENT.0 #2147483647 -> @1
    3.3/highest-epoch:
        plain CURRENT.32767 #0 -> @0
        plain CURRENT.32766 #0 -> INVALID_PRODUCER_EPOCH
    """)

#: 3.3 for transactions: the first sequence, gaps, and what is left of a transaction when the next one comes.
_TRANSACTIONAL = table("""
    3.3/new-client-begins-at-zero-each-time new tv=12:
        produce NEW.0 #0 -> @0
        abort NEW.0 -> NEW 1
        produce NEW.1 #1 -> OUT_OF_ORDER_SEQUENCE_NUMBER
        produce NEW.1 #0 -> @2
    3.3/old-client-begins-anywhere EMPTY:
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #5 v11 -> @0
        produce CURRENT.7 #6 v11 -> @1
    3.3/first-attempt-bounds-the-first-sequence EMPTY:
        produce CURRENT.7 #5 v11 -> TRANSACTION_ABORTABLE
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #6 v11 -> OUT_OF_ORDER_SEQUENCE_NUMBER
        produce CURRENT.7 #5 v11 -> @0
    3.3/first-attempt-bounds-from-above-only EMPTY:
        produce CURRENT.7 #5 v11 -> TRANSACTION_ABORTABLE
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #4 v11 -> @0
    3.3/old-client-goes-on-counting EMPTY open:
        commit CURRENT.7 v4 -> OK
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #2 v11 -> OUT_OF_ORDER_SEQUENCE_NUMBER
        produce CURRENT.7 #1 v11 -> @2
    3.3/duplicate-of-the-transaction-before EMPTY open:
        commit CURRENT.7 v4 -> OK
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #0 v11 -> @0 again
        producers -> CURRENT 7 sequence=0 coordinator=OWN open=-1
    3.3/plain-batch-in-a-transaction EMPTY open:
        plain CURRENT.7 #1 -> INVALID_TXN_STATE
        commit CURRENT.7 v4 -> OK
        describe -> CompleteCommit CURRENT 7 []
        plain CURRENT.7 #1 -> @2
    3.3/newer-epoch-in-an-open-transaction EMPTY open:
        plain CURRENT.8 #0 -> INVALID_TXN_STATE
    3.3/duplicate-after-the-end-of-a-new-client new tv=12:
        produce NEW.0 #0 -> @0
        commit NEW.0 -> NEW 1
        produce NEW.0 #0 -> INVALID_PRODUCER_EPOCH
    """)

CASES = [*_FRONT_DOOR, *_ASKED, *_IMPLICIT, *_PLAIN, *_TRANSACTIONAL]
