"""EndTxn: the grids of sections 2.3 (v4 and below) and 2.4 (v5), and overflow (1.3)."""

from __future__ import annotations

from tests.conformance.cases import table

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
    2.3/fenced-v1 ONGOING: commit CURRENT.6 v1 -> INVALID_PRODUCER_EPOCH
    2.3/fenced-v2 ONGOING: commit CURRENT.6 v2 -> PRODUCER_FENCED
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

CASES = [*_OLD, *_GRID, *_ENDS]
