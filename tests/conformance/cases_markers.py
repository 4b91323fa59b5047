"""End markers and what they do to the leader's view: sections 2.6, 2.9 and 3.4."""

from __future__ import annotations

from tests.conformance.cases import table

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

CASES = [*_EPOCHS, *_REQUESTS, *_EFFECTS, *_DESCRIBED]
