"""Produce, and end markers and what they do to the leader's view: sections 2.6, 2.9 and 3.1 to 3.4.

The version of Produce says what the leader does: from 12 on it adds the partition, below it verifies; 10 and below are
old clients.
"""

from __future__ import annotations

from tests.conformance.cases import table

# --- Produce: what the leader asks the coordinator, and what it checks itself; sections 3.1 to 3.3 -------------------

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

PRODUCE = [*_FRONT_DOOR, *_ASKED, *_IMPLICIT, *_PLAIN, *_TRANSACTIONAL]


# --- End markers: sections 2.6, 2.9 and 3.4 --------------------------------------------------------------------------

#: Epochs, by the version of the request and the transaction.version that it names: at 2 the marker's is the newer one.
_EPOCHS = table(
    """
    3.4/<way>-older EMPTY open:
        marker CURRENT.6 abort <how> -> INVALID_PRODUCER_EPOCH
        producers -> CURRENT 7 sequence=0 coordinator=-1 open=0
    3.4/<way>-same EMPTY open:
        marker CURRENT.7 abort <how> -> <OK|OK|INVALID_PRODUCER_EPOCH>
        producers -> CURRENT 7 sequence=0 <coordinator=0 open=-1|coordinator=0 open=-1|coordinator=-1 open=0>
    3.4/<way>-newer EMPTY open:
        marker CURRENT.8 abort <how> -> OK
        producers -> CURRENT 8 sequence=-1 coordinator=0 open=-1
    3.4/<way>-unknown-producer:
        marker CURRENT.7 commit <how> -> OK
        marker CURRENT.7 commit <how> -> OK
        producers -> CURRENT 7 sequence=-1 coordinator=0 open=-1
        latest committed -> @2
    3.4/<way>-older-than-a-marker:
        marker CURRENT.7 commit <how> -> OK
        marker CURRENT.6 commit <how> -> INVALID_PRODUCER_EPOCH
        marker CURRENT.8 abort <how> -> OK
    3.4/<way>-highest-epoch-again:
        marker CURRENT.32767 abort <how> -> OK
        marker CURRENT.32767 abort <how> -> OK
    3.4/<way>-idempotent-producer:
        plain CURRENT.7 #0 -> @0
        marker CURRENT.7 abort <how> -> OK
        producers -> CURRENT 7 sequence=0 coordinator=0 open=-1
        plain CURRENT.7 #1 -> @2
    """,
    way="<v1-of-0|v2-of-0|v2-of-2>",
    how="<v1|v2|v2 level=2>",
)

_REQUESTS = table(
    """
    3.4/older-coordinator:
        marker CURRENT.7 commit coordinator=3 -> OK
        marker CURRENT.{7|8} commit coordinator=2 -> TRANSACTION_COORDINATOR_FENCED
    3.4/newer-coordinator:
        marker CURRENT.7 commit coordinator=3 -> OK
        marker CURRENT.7 abort coordinator=4 -> OK
        producers -> CURRENT 7 sequence=-1 coordinator=4 open=-1
    3.4/epoch-before-coordinator:
        marker CURRENT.7 commit coordinator=3 -> OK
        marker CURRENT.6 commit coordinator=2 -> INVALID_PRODUCER_EPOCH
    2.6/no-coordinator-at-first:
        marker CURRENT.7 commit coordinator=-1 -> OK
        marker CURRENT.7 commit coordinator=-1 -> OK
        marker CURRENT.7 commit -> OK
        marker CURRENT.7 commit coordinator=-1 -> TRANSACTION_COORDINATOR_FENCED
    2.6/unknown-partition: marker CURRENT.7 commit absent0 -> UNKNOWN_TOPIC_OR_PARTITION
    2.6/known-beside-unknown:
        marker CURRENT.7 commit here0 absent0 -> CURRENT absent0: UNKNOWN_TOPIC_OR_PARTITION, CURRENT here0: OK
        latest uncommitted -> @1
    2.6/no-markers:
        marker nothing {v1|v2} -> nothing
    2.6/two-producers:
        marker CURRENT.7 commit here0 here1 + PREVIOUS.3 abort here1 -> OK
        producers here1 -> CURRENT 7 sequence=-1 coordinator=0 open=-1
            PREVIOUS 3 sequence=-1 coordinator=0 open=-1
    2.6/hanging-transaction-is-ended EMPTY open:
        latest committed -> @0
        marker CURRENT.7 abort -> OK
        latest committed -> @2
        describe -> Ongoing CURRENT 7 [here0]
        produce CURRENT.7 #1 v11 -> @2
        abort CURRENT.7 v4 -> OK
        describe -> CompleteAbort CURRENT 7 []
        latest committed -> @4
    2.6/marker-ahead-of-the-coordinator EMPTY stuck open:
        marker CURRENT.9 abort -> OK
        commit CURRENT.7 v4 -> OK
        latest committed -> @2
    """
)

#: What ends of transactions do: also at the last epoch, to the guard, and in partitions without data.
_EFFECTS = table("""
    3.4/new-end-bumps-at-the-leader new tv=12:
        produce NEW.0 #0 -> @0
        commit NEW.0 -> NEW 1
        describe -> CompleteCommit NEW 1 []
        producers -> NEW 1 sequence=-1 coordinator=OWN open=-1
    3.4/old-end-keeps-the-epoch-at-the-leader EMPTY open:
        abort CURRENT.7 v4 -> OK
        describe -> CompleteAbort CURRENT 7 []
        producers -> CURRENT 7 sequence=0 coordinator=OWN open=-1
    3.4/fence-bumps-at-the-leader EMPTY open:
        init -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 8 []
        producers -> CURRENT 8 sequence=-1 coordinator=OWN open=-1
    1.3/marker-of-the-last-epoch EMPTY epoch=32766 tv=12:
        produce CURRENT.32766 #0 -> @0
        commit CURRENT.32766 -> NEW 0
        describe -> CompleteCommit NEW 0 []
        producers -> CURRENT 32767 sequence=-1 coordinator=OWN open=-1
        produce NEW.0 #0 -> @2
    1.3/marker-of-the-fence-of-the-last-epoch EMPTY epoch=32766 tv=<2|01>:
        add CURRENT.32766 here0 -> OK
        produce CURRENT.32766 #0 v11 -> @0
        init -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort <NEW 0|CURRENT 32767> []
        producers -> CURRENT 32767 sequence=-1 coordinator=OWN open=-1
    3.4/marker-removes-the-guard EMPTY:
        produce CURRENT.7 #5 v11 -> TRANSACTION_ABORTABLE
        marker CURRENT.7 abort -> OK
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #6 v11 -> OUT_OF_ORDER_SEQUENCE_NUMBER
        produce CURRENT.7 #0 v11 -> @1
    3.4/marker-without-data-is-written EMPTY:
        add CURRENT.7 here0 -> OK
        commit CURRENT.7 v4 -> OK
        describe -> CompleteCommit CURRENT 7 []
        read committed -> high=1 stable=1 aborted=[]; CURRENT 7 COMMIT/OWN@0
    """)

_DESCRIBED = table(
    """
    2.9/bad-name: producers bad?name0 -> INVALID_TOPIC_EXCEPTION
    2.9/unknown-topic: producers absent0 -> UNKNOWN_TOPIC_OR_PARTITION
    2.9/unknown-partition: producers shared1000 -> UNKNOWN_TOPIC_OR_PARTITION
    2.9/nobody: producers -> nobody
    2.9/open EMPTY open:
        produce CURRENT.7 #1 x3 v11 -> @1
        producers -> CURRENT 7 sequence=3 coordinator=-1 open=0
    3.5/idle-producer-is-forgotten:
        plain CURRENT.1 #0 now_ms=<old> -> @0
        until producers -> nobody
        plain CURRENT.1 #9 -> @1
    3.5/open-transaction-is-not-forgotten EMPTY open:
        plain PREVIOUS.1 #0 now_ms=<old> -> @1
        until producers -> CURRENT 7 sequence=0 coordinator=-1 open=0
    """,
    old=str(-2 * 86_400_000),
)

CASES = [*PRODUCE, *_EPOCHS, *_REQUESTS, *_EFFECTS, *_DESCRIBED]
