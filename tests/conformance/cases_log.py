"""What the coordinator writes to its log, and what it does with what it finds there: sections 1.2 to 1.4."""

from __future__ import annotations

from tests.conformance.cases import table

#: Below EndTxn v5 the records say nothing of the client, at any level.
_OLD_CLIENTS = table(
    """
    1.4/new-id-<tv> new tv=<tv>: state_records -> <v> Empty NEW 0 unstarted None <was>
    1.4/add-twice-<tv> new tv=<tv>:
        add NEW.0 -> OK
        add NEW.0 -> OK
        add NEW.0 shared1 -> OK
        state_records -> <v> Empty NEW 0 unstarted None <was>
            <v> Ongoing NEW 0 [shared0] <was>
            <v> Ongoing NEW 0 [shared0, shared1] <was>
    # The fence of a server at level 2 bumps in the decision itself, at the others before it.
    1.4/fence-<tv> new tv=<tv>:
        add NEW.0 -> OK
        init -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort NEW 1 []
        init -> NEW 2
        state_records -> <v> Empty NEW 0 unstarted None <was>
            <v> Ongoing NEW 0 [shared0] <was>
            <v> PrepareAbort NEW 1 [shared0] <fenced>
            <v> CompleteAbort NEW 1 [] <fenced>
            <v> Empty NEW 2 unstarted None <fenced>
    1.4/two-phase-<tv> tv=<tv>:
        init two_phase v6 -> NEW 0
        state_records -> <v> Empty NEW 0 timeout=2147483647 unstarted None <was>
    1.4/offsets-<tv> new tv=<tv>:
        add_offsets NEW.0 -> OK
        state_records -> <v> Empty NEW 0 unstarted None <was>
            <v> Ongoing NEW 0 [(__consumer_offsets, 0)] <was>
    1.4/no-change-no-record-<tv> new tv=<tv>:
        init NEW.5 -> PRODUCER_FENCED
        add NEW.3 -> PRODUCER_FENCED
        commit NEW.0 v4 -> INVALID_TXN_STATE
        abort NEW.0 v4 -> INVALID_TXN_STATE
        state_records -> <v> Empty NEW 0 unstarted None <was>
    1.4/old-commit-<tv> new tv=<tv>:
        add NEW.0 -> OK
        commit NEW.0 v4 -> OK
        describe -> CompleteCommit NEW 0 []
        commit NEW.0 v4 -> OK
        state_records -> <v> Empty NEW 0 unstarted None <was>
            <v> Ongoing NEW 0 [shared0] <was>
            <v> PrepareCommit NEW 0 [shared0] <was>
            <v> CompleteCommit NEW 0 [] <was>
    1.4/old-abort-<tv> new tv=<tv>:
        add NEW.0 -> OK
        abort NEW.0 v4 -> OK
        describe -> CompleteAbort NEW 0 []
        abort NEW.0 v4 -> OK
        state_records -> <v> Empty NEW 0 unstarted None <was>
            <v> Ongoing NEW 0 [shared0] <was>
            <v> PrepareAbort NEW 0 [shared0] <was>
            <v> CompleteAbort NEW 0 [] <was>
    """,
    tv="<0|1|2>",
    # The log of level 0 has no tags.
    v="<v0|v1|v1>",
    was="<{}|{previous: NEW}|{previous: NEW}>",
    fenced="<{}|{previous: NEW}|{previous: NEW, client: 2}>",
)

_NEW_CLIENTS = table("""
    1.4/new-commit new tv=12:
        produce NEW.0 #0 -> @0
        commit NEW.0 -> NEW 1
        describe -> CompleteCommit NEW 1 []
        commit NEW.0 -> NEW 1
        state_records -> v1 Empty NEW 0 unstarted None {previous: NEW}
            v1 Ongoing NEW 0 [here0] {previous: NEW, client: 2}
            v1 PrepareCommit NEW 1 [here0] {previous: NEW, client: 2}
            v1 CompleteCommit NEW 1 [] {previous: NEW, client: 2}
    1.4/empty-abort new tv=12:
        abort NEW.0 -> NEW 1
        describe -> CompleteAbort NEW 1 []
        state_records -> v1 Empty NEW 0 unstarted None {previous: NEW}
            v1 PrepareAbort NEW 1 [] {previous: NEW, client: 2}
            v1 CompleteAbort NEW 1 [] {previous: NEW, client: 2}
    1.3/overflow-in-the-log ONGOING epoch=32766 tv=2:
        abort CURRENT.32766 -> NEW 0
        describe -> CompleteAbort NEW 0 []
        init -> NEW 1
        state_records -> v1 Ongoing CURRENT 32766 [shared0] {previous: CURRENT, client: 2}
            v1 PrepareAbort CURRENT 32767 [shared0] {previous: CURRENT, next: NEW, client: 2}
            v1 CompleteAbort NEW 0 [] {previous: CURRENT, client: 2}
            v1 Empty NEW 1 unstarted None {previous: NEW, client: 2}
    1.2/fence-at-level-1-of-a-new-client new tv=1:
        add NEW.0 v5 -> OK
        init -> CONCURRENT_TRANSACTIONS
        describe -> CompleteAbort NEW 1 []
        state_records -> v1 Empty NEW 0 unstarted None {previous: NEW}
            v1 Ongoing NEW 0 [shared0] {previous: NEW, client: 2}
            v1 PrepareAbort NEW 1 [shared0] {previous: NEW}
            v1 CompleteAbort NEW 1 [] {previous: NEW}
    # What the coordinator writes of its own accord.
    1.5/timeout-in-the-log ONGOING timeout_ms=1000 start_age_ms=2000 tv=<1|2>:
        until describe -> CompleteAbort CURRENT 8 timeout=1000 []
        state_records -> v1 Ongoing CURRENT 7 timeout=1000 [shared0] {previous: CURRENT<|, client: 2>}
            v1 PrepareAbort CURRENT 8 timeout=1000 [shared0] {previous: CURRENT<|, client: 2>}
            v1 CompleteAbort CURRENT 8 timeout=1000 [] {previous: CURRENT<|, client: 2>}
    1.5/tombstone EMPTY update_age_ms=691200000 tv=2:
        until describe -> TRANSACTIONAL_ID_NOT_FOUND
        state_records -> v1 Empty CURRENT 7 unstarted None {previous: CURRENT, client: 2}; tombstone
    """)

#: A decided transaction is driven to its end as soon as it is loaded.
_LOADED = table("""
    1.4/decided-<commit|abort>-is-completed-when-loaded <PREPARE_COMMIT|PREPARE_ABORT> here0 here1:
        until describe -> Complete<Commit|Abort> CURRENT 7 []
        read committed -> high=1 stable=1 aborted=[]; CURRENT 7 <COMMIT|ABORT>/OWN@0
        latest committed here1 -> @1
        init -> CURRENT 8
    1.4/decided-<commit|abort>-without-partitions <PREPARE_COMMIT|PREPARE_ABORT> nothing:
        until describe -> Complete<Commit|Abort> CURRENT 7 []
    1.3/decided-<commit|abort>-at-the-end <PREPARE_COMMIT|PREPARE_ABORT> epoch=32767 following=PREVIOUS here0 tv=2:
        until describe -> Complete<Commit|Abort> PREVIOUS 0 []
        read committed -> high=1 stable=1 aborted=[]; CURRENT 32767 <COMMIT|ABORT>/OWN@0
        <commit|abort> CURRENT.32766 -> PREVIOUS 0
        add PREVIOUS.0 -> OK
    1.4/<commit|abort>-again-after-loading <COMPLETE_COMMIT|COMPLETE_ABORT> tv=12: <commit|abort> CURRENT.6 -> CURRENT 7
    """)

CASES = [*_OLD_CLIENTS, *_NEW_CLIENTS, *_LOADED]
