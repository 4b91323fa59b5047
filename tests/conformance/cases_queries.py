"""ListTransactions and DescribeTransactions: sections 2.7 and 2.8."""

from __future__ import annotations

from tests.conformance.cases import table

_LABELS = ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "PrepareCommit", "PrepareAbort")

_STATES = table(
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

CASES = [*_STATES, *_OTHERS]
