"""InitProducerId: the grid of section 2.1, its gates, fencing (1.2), overflow (1.3)."""

from __future__ import annotations

from tests.conformance.cases import table

#: For an epoch that has room, and for one that has not.
_AT_REST = table(
    """
    2.1/<rest>-no-pair <rest>:
        init -> CURRENT 8
        init -> CURRENT 9
    2.1/<rest>-current-pair <rest>:
        init CURRENT.7 -> CURRENT 8
        init CURRENT.8 -> CURRENT 9
    2.1/<rest>-last-pair-again <rest>:
        init CURRENT.7 -> CURRENT 8
        init CURRENT.7 -> CURRENT 8
    2.1/<rest>-last-pair-after-no-pair <rest>:
        init -> CURRENT 8
        init CURRENT.7 -> PRODUCER_FENCED
    2.1/<rest>-stale-epoch <rest>:
        init CURRENT.6 -> PRODUCER_FENCED
        init CURRENT.7 -> CURRENT 8
    2.1/<rest>-epoch-ahead <rest>: init CURRENT.8 -> PRODUCER_FENCED
    2.1/<rest>-unknown-pair <rest>: init UNKNOWN.7 -> PRODUCER_FENCED
    2.1/<rest>-previous-id-with-room <rest> previous=PREVIOUS: init PREVIOUS.7 -> PRODUCER_FENCED
    2.1/<rest>-previous-id-at-its-end <rest> previous=PREVIOUS: init PREVIOUS.32766 -> PRODUCER_FENCED
    2.1/<rest>-exhausted-no-pair <rest> epoch=32766:
        init -> NEW 0
        init CURRENT.32766 -> PRODUCER_FENCED
    2.1/<rest>-exhausted-current-pair <rest> epoch=32766:
        init CURRENT.32766 -> NEW 0
        init CURRENT.32766 -> NEW 0
        init NEW.0 -> NEW 1
    2.1/<rest>-exhausted-stale-epoch <rest> epoch=32766: init CURRENT.5 -> UNKNOWN_SERVER_ERROR
    2.1/<rest>-exhausted-last-pair <rest> epoch=32765:
        init CURRENT.32765 -> CURRENT 32766
        init CURRENT.32765 -> UNKNOWN_SERVER_ERROR
    2.1/<rest>-exhausted-previous-id <rest> epoch=32766 previous=PREVIOUS tv=12: init PREVIOUS.32766 -> NEW 0
    # The log of level 0 does not hold the id before.
    2.1/<rest>-exhausted-previous-id <rest> epoch=32766 previous=PREVIOUS tv=0: init PREVIOUS.32766 -> PRODUCER_FENCED
    """,
    rest="<EMPTY|COMPLETE_COMMIT|COMPLETE_ABORT>",
)

#: Fence, abort, and the second attempt.
_ONGOING = table(
    """
    2.1/ongoing-no-pair ONGOING:
        init -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 8 []
        init -> CURRENT 9
    2.1/ongoing-stale-epoch ONGOING:
        init CURRENT.6 -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 8 []
        init CURRENT.6 -> PRODUCER_FENCED
    2.1/ongoing-epoch-ahead ONGOING:
        init CURRENT.9 -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 8 []
    2.1/ongoing-unknown-pair ONGOING:
        init UNKNOWN.7 -> PRODUCER_FENCED
        describe -> Ongoing CURRENT 7 [shared0]
    2.1/ongoing-previous-id-at-its-end ONGOING previous=PREVIOUS tv=12:
        init PREVIOUS.32766 -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 8 []
    2.1/ongoing-previous-id-with-room ONGOING previous=PREVIOUS: init PREVIOUS.7 -> PRODUCER_FENCED
    2.1/ongoing-current-pair-again ONGOING tv=<2|01>:
        init CURRENT.7 -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 8 []
        init CURRENT.7 -> <CURRENT 8|PRODUCER_FENCED>
    2.1/<decided>-any-pair <decided> previous=PREVIOUS stuck:
        init {|CURRENT.7|CURRENT.6|UNKNOWN.7|PREVIOUS.32766} -> CONCURRENT_TRANSACTIONS
    1.3/fence-of-the-last-epoch ONGOING epoch=32766 tv=<2|01>:
        init -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort <NEW 0|CURRENT 32767> []
        init -> <NEW 1|NEW 0>
    1.3/fence-of-the-last-but-one-epoch ONGOING epoch=32765:
        init -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 32766 []
        init -> NEW 0
    2.10/force-termination-of-a-two-phase-transaction ONGOING timeout_ms=2147483647 start_age_ms=600000:
        init timeout_ms=30000 -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort CURRENT 8 timeout=2147483647 []
        init timeout_ms=30000 -> CURRENT 9
        describe -> Empty CURRENT 9 timeout=30000 unstarted []
    """,
    decided="<PREPARE_COMMIT|PREPARE_ABORT>",
)

#: What is looked at before the state.
_GATES = table("""
    2.1/new-id-v<0|2|6>: init v<0|2|6> -> NEW 0
    2.1/new-id-with-a-pair: init UNKNOWN.5 -> NEW 0
    2.1/no-id:
        init tid=none -> NEW 0
        init tid=none -> NEWER 0
    2.1/no-id-nothing-is-checked: init tid=none timeout_ms=-5 -> NEW 0
    2.1/no-id-nothing-of-v6-is-checked: init tid=none two_phase keep v6 -> NEW 0
    2.1/no-id-with-a-pair: init UNKNOWN.5 tid=none -> NEW 0
    2.1/empty-id: init tid= -> INVALID_REQUEST
    2.1/producer-id-alone: init UNKNOWN.-1 -> INVALID_REQUEST
    2.1/epoch-alone: init NO_ID.3 -> INVALID_REQUEST
    2.1/pair-in-halves-without-id: init NO_ID.3 tid=none -> INVALID_REQUEST
    2.1/timeout-zero:
        init timeout_ms=0 -> INVALID_TRANSACTION_TIMEOUT
        describe -> TRANSACTIONAL_ID_NOT_FOUND
    2.1/timeout-too-long: init timeout_ms=900001 -> INVALID_TRANSACTION_TIMEOUT
    2.1/timeout-longest:
        init timeout_ms=900000 -> NEW 0
        describe -> Empty NEW 0 timeout=900000 unstarted []
    2.1/two-phase-has-no-timeout:
        init timeout_ms=0 two_phase v6 -> NEW 0
        describe -> Empty NEW 0 timeout=2147483647 unstarted []
        init v6 -> NEW 1
        describe -> Empty NEW 1 unstarted []
    2.1/keep-is-not-there: init keep v6 -> UNSUPPORTED_VERSION
    2.1/keep-before-the-state ONGOING:
        init two_phase keep v6 -> UNSUPPORTED_VERSION
        describe -> Ongoing CURRENT 7 [shared0]
    2.1/keep-with-empty-id: init tid= keep v6 -> INVALID_REQUEST
    2.1/fenced-v3 EMPTY: init CURRENT.6 v3 -> INVALID_PRODUCER_EPOCH
    2.1/fenced-v4 EMPTY: init CURRENT.6 v4 -> PRODUCER_FENCED
    2.1/timeout-of-the-last-call EMPTY:
        init timeout_ms=5000 -> CURRENT 8
        describe -> Empty CURRENT 8 timeout=5000 unstarted []
    """)

#: Notes below the grid, and the consequences in 2.4.
_AFTER_THE_END = table(
    """
    2.1/commit-leaves-its-epoch-as-the-last ONGOING tv=2:
        commit CURRENT.7 -> CURRENT 8
        init CURRENT.7 -> CURRENT 8
    2.1/old-commit-leaves-its-epoch ONGOING:
        commit CURRENT.7 v4 -> OK
        init CURRENT.7 -> CURRENT 8
    2.1/loaded-commit-has-no-last-epoch COMPLETE_COMMIT tv=2: init CURRENT.6 -> PRODUCER_FENCED
    2.4/between-fence-and-retry ONGOING tv=2:
        init -> CONCURRENT_TRANSACTIONS
        commit CURRENT.7 -> INVALID_TXN_STATE
        add CURRENT.7 -> PRODUCER_FENCED
        abort CURRENT.7 -> CURRENT 8
        init -> CURRENT 9
        abort CURRENT.{7|8} -> PRODUCER_FENCED
        commit CURRENT.8 -> PRODUCER_FENCED
    2.4/after-a-timeout ONGOING timeout_ms=1 tv=2:
        until describe -> CompleteAbort CURRENT 8 timeout=1 []
        commit CURRENT.7 -> INVALID_TXN_STATE
        add CURRENT.7 -> PRODUCER_FENCED
        abort CURRENT.7 -> CURRENT 8
        add CURRENT.8 -> OK
    1.5/timeout ONGOING timeout_ms=1000 start_age_ms=2000 shared0 shared1:
        until describe -> CompleteAbort CURRENT 8 timeout=1000 []
        add CURRENT.7 -> PRODUCER_FENCED
        {commit|abort} CURRENT.7 v4 -> PRODUCER_FENCED
    1.5/timeout-of-the-last-epoch ONGOING epoch=32766 timeout_ms=1000 start_age_ms=2000 tv=2:
        until describe -> CompleteAbort NEW 0 timeout=1000 []
    1.5/two-phase-has-no-timeout ONGOING timeout_ms=2147483647 start_age_ms=<month>:
        describe -> Ongoing CURRENT 7 timeout=2147483647 [shared0]
    1.5/expired-<rest> <rest> start_age_ms=<old> update_age_ms=<old>:
        until describe -> TRANSACTIONAL_ID_NOT_FOUND
        {add|commit} CURRENT.7 -> INVALID_PRODUCER_ID_MAPPING
        init CURRENT.3 -> NEW 0
    1.5/open-is-not-expired ONGOING update_age_ms=<old>: describe -> Ongoing CURRENT 7 [shared0]
    """,
    rest="<EMPTY|COMPLETE_COMMIT|COMPLETE_ABORT>",
    month=str(30 * 86_400_000),
    old=str(8 * 86_400_000),
)

CASES = [*_AT_REST, *_ONGOING, *_GATES, *_AFTER_THE_END]
