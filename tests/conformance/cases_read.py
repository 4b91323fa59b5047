"""What readers see: last stable offset, aborted transactions, both isolation levels; section 3.5."""

from __future__ import annotations

from tests.conformance.cases import table

_ONE = table("""
    3.5/open EMPTY:
        plain -> @0
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #0 x2 v11 -> @1
        latest uncommitted -> @3
        latest committed -> @1
        read uncommitted -> high=3 stable=1 aborted=None; -1 -1 #-1 plain@0; CURRENT 7 #0@1-2
        read committed -> high=3 stable=1 aborted=[]; -1 -1 #-1 plain@0
        read committed offset={1|2} -> high=3 stable=1 aborted=[]
        read uncommitted offset=2 -> high=3 stable=1 aborted=None; CURRENT 7 #0@1-2
    3.5/<commit|abort> EMPTY:
        plain -> @0
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #0 x2 v11 -> @1
        <commit|abort> CURRENT.7 v4 -> OK
        describe -> Complete<Commit|Abort> CURRENT 7 []
        latest committed -> @4
        read uncommitted -> high=4 stable=4 aborted=None
            -1 -1 #-1 plain@0
            CURRENT 7 #0@1-2
            CURRENT 7 <COMMIT|ABORT>/OWN@3
        read committed -> high=4 stable=4 aborted=[<|CURRENT@1>]
            -1 -1 #-1 plain@0
            CURRENT 7 #0@1-2
            CURRENT 7 <COMMIT|ABORT>/OWN@3
        read committed offset=3 -> high=4 stable=4 aborted=[<|CURRENT@1>]; CURRENT 7 <COMMIT|ABORT>/OWN@3
        read committed offset=4 -> high=4 stable=4 aborted=[]
    3.5/out-of-range:
        plain -> @0
        read {committed offset=2|uncommitted offset=2|uncommitted offset=-5} -> OFFSET_OUT_OF_RANGE
    3.5/beyond-the-stable-offset EMPTY:
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #0 x2 v11 -> @0
        read committed offset=1 -> high=2 stable=0 aborted=[]
        read committed offset=3 -> OFFSET_OUT_OF_RANGE
    3.5/empty:
        read committed -> high=0 stable=0 aborted=[]
        latest committed -> @0
    3.5/earliest:
        plain -> @0
        latest {uncommitted|committed} timestamp_ms=-2 -> @0
    3.5/by-timestamp-only-below-the-stable-offset EMPTY:
        add CURRENT.7 here0 -> OK
        produce CURRENT.7 #0 x2 v11 -> @0
        latest uncommitted timestamp_ms=0 -> @0
        latest committed timestamp_ms=0 -> @-1
    """)

_SEVERAL = table("""
    3.5/first-ends-first new tv=12:
        init tid=@U -> NEWER 0
        produce NEW.0 #0 -> @0
        produce NEWER.0 #0 tid=@U -> @1
        latest committed -> @0
        abort NEW.0 -> NEW 1
        describe -> CompleteAbort NEW 1 []
        latest committed -> @1
        read committed -> high=3 stable=1 aborted=[NEW@0]; NEW 0 #0@0
        abort NEWER.0 tid=@U -> NEWER 1
        describe tid=@U -> CompleteAbort NEWER 1 []
        read committed -> high=4 stable=4 aborted=[NEW@0, NEWER@1]
            NEW 0 #0@0
            NEWER 0 #0@1
            NEW 1 ABORT/OWN@2
            NEWER 1 ABORT/OWN@3
        read committed offset=3 -> high=4 stable=4 aborted=[NEWER@1]; NEWER 1 ABORT/OWN@3
    3.5/second-ends-first new tv=12:
        init tid=@U -> NEWER 0
        produce NEW.0 #0 -> @0
        produce NEWER.0 #0 tid=@U -> @1
        abort NEWER.0 tid=@U -> NEWER 1
        describe tid=@U -> CompleteAbort NEWER 1 []
        latest committed -> @0
        read committed -> high=3 stable=0 aborted=[]
        abort NEW.0 -> NEW 1
        describe -> CompleteAbort NEW 1 []
        read committed -> high=4 stable=4 aborted=[NEWER@1, NEW@0]
            NEW 0 #0@0
            NEWER 0 #0@1
            NEWER 1 ABORT/OWN@2
            NEW 1 ABORT/OWN@3
    3.5/again-and-again new tv=12:
        produce NEW.0 #0 -> @0
        abort NEW.0 -> NEW 1
        produce NEW.1 #0 -> @2
        commit NEW.1 -> NEW 2
        produce NEW.2 #0 -> @4
        abort NEW.2 -> NEW 3
        describe -> CompleteAbort NEW 3 []
        read committed -> high=6 stable=6 aborted=[NEW@0, NEW@4]
            NEW 0 #0@0
            NEW 1 ABORT/OWN@1
            NEW 1 #0@2
            NEW 2 COMMIT/OWN@3
            NEW 2 #0@4
            NEW 3 ABORT/OWN@5
        read committed offset=2 -> high=6 stable=6 aborted=[NEW@4]
            NEW 1 #0@2
            NEW 2 COMMIT/OWN@3
            NEW 2 #0@4
            NEW 3 ABORT/OWN@5
    3.5/marker-of-nothing-is-not-listed:
        marker CURRENT.7 abort -> OK
        read committed -> high=1 stable=1 aborted=[]; CURRENT 7 ABORT/0@0
    """)

CASES = [*_ONE, *_SEVERAL]
