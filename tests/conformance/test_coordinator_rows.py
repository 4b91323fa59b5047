"""Sections 1, 2.1 to 2.4, 2.7, 2.8 and 2.10: what the coordinator answers, row by row."""

from __future__ import annotations

import pytest

from tests.conformance.cases import Case, table
from tests.conformance.subjects import Subject, parametrize

# --- InitProducerId: the grid of section 2.1, its gates, fencing (1.2), overflow (1.3) -------------------------------

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
    2.1/fenced-v<3|4> EMPTY: init CURRENT.6 v<3|4> -> <INVALID_PRODUCER_EPOCH|PRODUCER_FENCED>
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

INIT = [*_AT_REST, *_ONGOING, *_GATES, *_AFTER_THE_END]


# --- AddPartitionsToTxn, of clients and of leaders, and AddOffsetsToTxn: section 2.2 ---------------------------------

PARTITIONS = table(
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


# --- EndTxn: the grids of sections 2.3 (v4 and below) and 2.4 (v5), and overflow (1.3) -------------------------------

_STATES = "<ONGOING|EMPTY|COMPLETE_COMMIT|COMPLETE_ABORT>"
_DECIDED = "<PREPARE_COMMIT|PREPARE_ABORT>"

#: v4 and below: the epoch stays.
_OLD = table(
    """
    2.3/<state>-commit <state>: commit CURRENT.7 v4 -> <OK|INVALID_TXN_STATE|OK|INVALID_TXN_STATE>
    2.3/<state>-abort <state>: abort CURRENT.7 v4 -> <OK|INVALID_TXN_STATE|INVALID_TXN_STATE|OK>
    2.3/<state>-refused <state>:
        {commit|abort} CURRENT.{6|8} v4 -> PRODUCER_FENCED
        {commit|abort} UNKNOWN.7 v4 -> INVALID_PRODUCER_ID_MAPPING
    2.3/<decided>-any-pair <decided> stuck:
        {commit|abort} CURRENT.7 v4 -> CONCURRENT_TRANSACTIONS
        {commit|abort} CURRENT.6 v4 -> PRODUCER_FENCED
        {commit|abort} UNKNOWN.7 v4 -> INVALID_PRODUCER_ID_MAPPING
    1.2/old-<commit|abort>-keeps-the-epoch ONGOING:
        <commit|abort> CURRENT.7 v4 -> OK
        describe -> Complete<Commit|Abort> CURRENT 7 []
        <commit|abort> CURRENT.7 v4 -> OK
        add CURRENT.7 shared1 -> OK
        describe -> Ongoing CURRENT 7 [shared1]
    2.3/<commit|abort>-of-the-last-epoch ONGOING epoch=32766:
        <commit|abort> CURRENT.32766 v4 -> OK
        describe -> Complete<Commit|Abort> CURRENT 32766 []
    2.3/unknown-id: commit UNKNOWN.0 v4 -> INVALID_PRODUCER_ID_MAPPING
    2.3/empty-id: commit UNKNOWN.0 tid= v4 -> INVALID_REQUEST
    2.3/fenced-v<1|2> ONGOING: commit CURRENT.6 v<1|2> -> <INVALID_PRODUCER_EPOCH|PRODUCER_FENCED>
    """,
    state=_STATES,
    decided=_DECIDED,
)

#: v5: the current pair, and the one before, whose request is repeated.
_GRID = table(
    """
    2.4/<state>-commit <state> tv=12:
        commit CURRENT.7 -> <CURRENT 8|INVALID_TXN_STATE|INVALID_TXN_STATE|INVALID_TXN_STATE>
    2.4/<state>-commit-again <state> tv=12:
        commit CURRENT.6 -> <PRODUCER_FENCED|PRODUCER_FENCED|CURRENT 7|INVALID_TXN_STATE>
    2.4/<state>-abort <state> tv=12: abort CURRENT.7 -> CURRENT 8
    2.4/<state>-abort-again <state> tv=12:
        abort CURRENT.6 -> <PRODUCER_FENCED|PRODUCER_FENCED|INVALID_TXN_STATE|CURRENT 7>
    2.4/<state>-refused <state> previous=PREVIOUS tv=12:
        {commit|abort} CURRENT.{8|4} -> PRODUCER_FENCED
        {commit|abort} {UNKNOWN|PREVIOUS}.7 -> INVALID_PRODUCER_ID_MAPPING
    2.4/<decided>-any-pair <decided> stuck tv=12:
        {commit|abort} {CURRENT.7|CURRENT.6|CURRENT.3|UNKNOWN.7} -> CONCURRENT_TRANSACTIONS
    2.4/unknown-id tv=2: commit UNKNOWN.0 -> INVALID_PRODUCER_ID_MAPPING
    2.4/empty-id tv=2: commit UNKNOWN.0 tid= -> INVALID_REQUEST
    """,
    state=_STATES,
    decided=_DECIDED,
)

_ENDS = table(
    """
    2.4/<end>-bumps-and-its-retry-does-not ONGOING tv=12:
        <end> CURRENT.7 -> CURRENT 8
        describe -> Complete<End> CURRENT 8 []
        <end> CURRENT.7 -> CURRENT 8
        add CURRENT.8 shared1 -> OK
        <end> CURRENT.7 -> PRODUCER_FENCED
        <end> CURRENT.8 -> CURRENT 9
    1.3/<end>-of-the-last-epoch ONGOING epoch=32766 tv=12:
        <end> CURRENT.32766 -> NEW 0
        describe -> Complete<End> NEW 0 []
        <end> CURRENT.32766 -> NEW 0
        add CURRENT.32766 -> INVALID_PRODUCER_ID_MAPPING
        add NEW.0 -> OK
        <end> CURRENT.32766 -> INVALID_PRODUCER_ID_MAPPING
        <end> NEW.0 -> NEW 1
        <end> CURRENT.32766 -> INVALID_PRODUCER_ID_MAPPING
    1.3/<end>-of-the-last-but-one-epoch ONGOING epoch=32765 tv=12:
        <end> CURRENT.32765 -> CURRENT 32766
        describe -> Complete<End> CURRENT 32766 []
        add CURRENT.32766 -> OK
        <end> CURRENT.32766 -> NEW 0
    2.4/<end>-of-the-overflow-passes-the-id ONGOING epoch=0 previous=PREVIOUS tv=12:
        <end> PREVIOUS.32766 -> PRODUCER_FENCED
    2.4/<end>-of-the-overflow-when-empty ONGOING epoch=32766 tv=12:
        <end> CURRENT.32766 -> NEW 0
        init NEW.0 -> NEW 1
        <end> CURRENT.32766 -> INVALID_PRODUCER_ID_MAPPING
    2.4/<end>-looks-like-an-overflow ONGOING epoch=0 tv=12:
        <end> CURRENT.0 v4 -> OK
        <end> CURRENT.32766 -> CURRENT 0
        add CURRENT.0 -> OK
        <end> CURRENT.32766 -> PRODUCER_FENCED
    2.4/empty-aborts-burn-epochs EMPTY tv=2:
        abort CURRENT.7 -> CURRENT 8
        describe -> CompleteAbort CURRENT 8 []
        abort CURRENT.8 -> CURRENT 9
        abort CURRENT.8 -> CURRENT 9
        abort CURRENT.9 -> CURRENT 10
        commit CURRENT.10 -> INVALID_TXN_STATE
    1.3/empty-abort-of-the-last-epoch COMPLETE_COMMIT epoch=32766 tv=12:
        abort CURRENT.32766 -> NEW 0
        abort CURRENT.32766 -> NEW 0
        describe -> CompleteAbort NEW 0 []
    2.4/commit-without-partitions EMPTY tv=12:
        add CURRENT.7 nothing -> nothing
        commit CURRENT.7 -> CURRENT 8
    1.3/broken-epoch-abort ONGOING epoch=32767 tv=12:
        abort CURRENT.32767 -> NEW 0
        describe -> CompleteAbort NEW 0 []
    1.3/broken-epoch-commit ONGOING epoch=32767 tv=12: commit CURRENT.32767 -> UNKNOWN_SERVER_ERROR
    # What clients of one kind find after those of the other, and what an old log cannot hold.
    1.4/new-client-on-an-old-log ONGOING tv=0:
        commit CURRENT.7 -> UNSUPPORTED_VERSION
        describe -> Ongoing CURRENT 7 [shared0]
    # Kafka fails on the way and forgets to take back that a change is under way: nothing helps but a new load.
    1.4/new-abort-on-an-old-log ONGOING tv=0:
        abort CURRENT.7 -> UNSUPPORTED_VERSION
        abort CURRENT.7 v4 -> CONCURRENT_TRANSACTIONS
        init -> CONCURRENT_TRANSACTIONS
    1.4/new-empty-abort-on-an-old-log EMPTY tv=0: abort CURRENT.7 -> UNSUPPORTED_VERSION
    2.3/old-client-after-a-new-one ONGOING tv=12:
        commit CURRENT.7 -> CURRENT 8
        add CURRENT.8 -> OK
        commit CURRENT.8 v4 -> OK
        describe -> CompleteCommit CURRENT 8 []
    2.4/new-client-after-an-old-one ONGOING tv=12:
        commit CURRENT.7 v4 -> OK
        add CURRENT.7 -> OK
        commit CURRENT.7 -> CURRENT 8
        describe -> CompleteCommit CURRENT 8 []
    """,
    end="<commit|abort>",
    End="<Commit|Abort>",
)

END = [*_OLD, *_GRID, *_ENDS]


# --- ListTransactions and DescribeTransactions: sections 2.7 and 2.8 -------------------------------------------------

_LABELS = ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "PrepareCommit", "PrepareAbort")

_LISTED = table(
    """
    2.7/<state> <EMPTY|ONGOING|COMPLETE_COMMIT|COMPLETE_ABORT|PREPARE_COMMIT stuck|PREPARE_ABORT stuck> <age>:
        describe -> <state> CURRENT 7< unstarted|||||> <[]|[shared0]|[]|[]|[stuck0]|[stuck0]>
        listed {|v0|states=<state>|states=<state>,Dead} -> @T CURRENT <state>
        listed {producer_ids=CURRENT|producer_ids=UNKNOWN,CURRENT} -> @T CURRENT <state>
        listed {duration_ms=0|duration_ms=30000 v1} -> @T CURRENT <state>
        listed states=<others> -> nothing
        listed states=<state>,Nonsense -> unknown Nonsense; @T CURRENT <state>
        listed {|states=<state>} producer_ids=UNKNOWN -> nothing
        listed duration_ms=3600000 -> <@T CURRENT Empty|nothing|nothing|nothing|nothing|nothing>
    """,
    age="start_age_ms=60000",
    state=f"<{'|'.join(_LABELS)}>",
    others=f"<{'|'.join(','.join(each for each in _LABELS if each != label) for label in _LABELS)}>",
)

_OTHERS = table(r"""
    2.7/state-nobody-has EMPTY:
        listed states={Dead|PrepareEpochFence} -> nothing
    2.7/unknown-states-alone EMPTY: listed states=Nonsense,empty -> unknown Nonsense; unknown empty
    2.7/pattern-must-match-all EMPTY:
        listed pattern={@T|.*T} -> @T CURRENT Empty
        listed pattern=case[0-9]*-(T|U) -> @T CURRENT Empty
        listed pattern=T -> nothing
    2.7/pattern-none-or-empty EMPTY:
        listed {pattern=|} -> @T CURRENT Empty
    2.7/pattern-that-is-none EMPTY:
        listed pattern={(|a**} -> INVALID_REGULAR_EXPRESSION
    2.7/pattern-of-re2 EMPTY:
        listed pattern={(?=x)|(a)\1} -> INVALID_REGULAR_EXPRESSION
    2.7/several-ids new:
        init tid=@U -> NEWER 0
        listed -> @T NEW Empty; @U NEWER Empty
        listed producer_ids=NEW -> @T NEW Empty
    2.8/unknown-id: describe -> TRANSACTIONAL_ID_NOT_FOUND
    2.8/empty-id: describe tid= -> INVALID_REQUEST
    2.8/two-phase ONGOING timeout_ms=2147483647: describe -> Ongoing CURRENT 7 timeout=2147483647 [shared0]
    2.8/start-stays-after-the-end EMPTY:
        add CURRENT.7 -> OK
        commit CURRENT.7 v4 -> OK
        describe -> CompleteCommit CURRENT 7 []
        init -> CURRENT 8
        describe -> Empty CURRENT 8 unstarted []
    """)

QUERIES = [*_LISTED, *_OTHERS]


CASES = [*INIT, *PARTITIONS, *END, *QUERIES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, CASES, with_machine=True)


def test_row(subject: Subject, case: Case) -> None:
    subject.run(case)
