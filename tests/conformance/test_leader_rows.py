"""Sections 1.2 to 1.4, 2.5, 2.6, 2.9, 3 and KIP-584: the log, what leaders answer and what readers see, row by row."""

from __future__ import annotations

import pytest

from tests.conformance import cases_leaders
from tests.conformance.cases import Case, table
from tests.conformance.subjects import Subject, parametrize

# --- What the coordinator writes to its log, and does with what it finds there: sections 1.2 to 1.4 ------------------

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

LOG = [*_OLD_CLIENTS, *_NEW_CLIENTS, *_LOADED]


# --- TxnOffsetCommit: section 2.5 ------------------------------------------------------------------------------------

#: From version 5 on the group's partition is added, which the log of level 0 cannot hold.
_VERSIONS = table(
    """
    2.5/v5-not-added EMPTY tv=12:
        commit_offset CURRENT.7 -> OK
        describe -> Ongoing CURRENT 7 [(__consumer_offsets, 0)]
    2.5/v<4|3>-not-added EMPTY: commit_offset CURRENT.7 v<4|3> -> <TRANSACTION_ABORTABLE|INVALID_TXN_STATE>
    2.5/v<version>-added EMPTY <levels>:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 v<version> -> OK
    2.5/v<version>-stale EMPTY <levels>: commit_offset CURRENT.6 v<version> -> INVALID_PRODUCER_EPOCH
    2.5/v<version>-ahead EMPTY <levels>: commit_offset CURRENT.8 v<version> -> INVALID_PRODUCER_EPOCH
    2.5/v<version>-unknown-producer-id EMPTY <levels>:
        commit_offset UNKNOWN.7 v<version> -> INVALID_PRODUCER_ID_MAPPING
    2.5/v<version>-unknown-id <levels>: commit_offset UNKNOWN.7 v<version> -> INVALID_PRODUCER_ID_MAPPING
    2.5/v<version>-decided PREPARE_ABORT stuck <levels>: commit_offset CURRENT.7 v<version> -> CONCURRENT_TRANSACTIONS
    2.5/v<version>-unknown-topic EMPTY <levels>:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 absent0 v<version> -> UNKNOWN_TOPIC_OR_PARTITION
    2.5/v<version>-no-group EMPTY <levels>: commit_offset CURRENT.7 group= v<version> -> INVALID_GROUP_ID
    2.5/v<version>-metadata-too-long EMPTY <levels>:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 metadata=<long> v<version> -> OFFSET_METADATA_TOO_LARGE
    2.5/v<version>-unknown-group-with-a-generation EMPTY <levels>:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 generation=1 v<version> -> ILLEGAL_GENERATION
    2.5/v<version>-unknown-member EMPTY <levels>:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 generation=1 member=who v<version> -> ILLEGAL_GENERATION
    2.5/v<version>-unknown-member-without-generation EMPTY <levels>:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 member=who v<version> -> OK
    """,
    version="<5|4|3>",
    levels="<tv=12||>",
    long="m" * 5000,
)

#: Of clients that add the partition themselves, and of those for whom it is added.
_OUTCOMES = table("""
    2.5/pending EMPTY:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 v4 -> OK
        committed_offset -> @-1
        committed_offset stable -> UNSTABLE_OFFSET_COMMIT
    2.5/committed EMPTY:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 v4 -> OK
        commit CURRENT.7 v4 -> OK
        describe -> CompleteCommit CURRENT 7 []
        committed_offset {|stable} -> @5
    2.5/aborted EMPTY:
        add_offsets CURRENT.7 -> OK
        commit_offset CURRENT.7 v4 -> OK
        abort CURRENT.7 v4 -> OK
        describe -> CompleteAbort CURRENT 7 []
        committed_offset stable -> @-1
    2.5/abort-leaves-what-was new tv=12:
        commit_offset NEW.0 -> OK
        commit NEW.0 -> NEW 1
        commit_offset NEW.1 offset=9 -> OK
        committed_offset stable -> UNSTABLE_OFFSET_COMMIT
        committed_offset -> @5
        abort NEW.1 -> NEW 2
        describe -> CompleteAbort NEW 2 []
        committed_offset stable -> @5
    2.5/stale-at-the-leader new tv=12:
        commit_offset NEW.0 -> OK
        commit NEW.0 -> NEW 1
        describe -> CompleteCommit NEW 1 []
        commit_offset NEW.0 offset=6 {v5|v4|v3} -> INVALID_PRODUCER_EPOCH
    2.5/fenced new tv=12:
        commit_offset NEW.0 -> OK
        init -> CONCURRENT_TRANSACTIONS
        commit_offset NEW.0 offset=6 -> INVALID_PRODUCER_EPOCH
        init -> NEW 2
        committed_offset stable -> @-1
    2.5/implicit-add-on-an-old-log new tv=0: commit_offset NEW.0 -> UNSUPPORTED_VERSION
    """)

OFFSETS = [*_VERSIONS, *_OUTCOMES]


# --- What readers see: last stable offset, aborted transactions, both isolation levels; section 3.5 ------------------

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

READ = [*_ONE, *_SEVERAL]


# --- UpdateFeatures: which change of a level is refused, and how (KIP-584, KIP-1022) ---------------------------------

#: ``kind`` is the type of the update: 1 an upgrade, 2 a safe downgrade, 3 an unsafe one.
FEATURES = table(
    """
    584/above: update <tv> level=3 kind=1 -> <refused> 3 <of tv> <local> only supports versions 0-2
    584/above-downwards: update <tv> level=3 kind=2 -> <refused> 3 <of tv> <local> only supports versions 0-2
    584/negative: update <tv> level=-1 kind=2 -> <refused> -1 <of tv> A feature version cannot be less than 0.
    584/no-type: update <tv> level=2 kind=0 -> <refused> 2 <of tv> <no type>
    584/no-such-type: update <tv> level=2 kind=4 -> <refused> 2 <of tv> <no type>
    584/no-such-feature:
        update feature=nosuch level=1 kind=1 -> <refused> 1 for feature nosuch. <local> does not support this feature.
    584/no-such-feature-to-remove:
        update feature=nosuch level=0 kind=2 -> <refused> 0 for feature nosuch. Feature nosuch not found.
    584/metadata-below:
        update <mv> level=1 kind=2 -> <refused> 1 for feature metadata.version. <local> only supports versions 7-33
    584/metadata-down: update <mv> level=32 kind=1 -> <refused> 32 for feature metadata.version. <down>
    584/down-as-upgrade tv=12: update <tv> level=0 kind=1 -> <refused> 0 <of tv> <down>
    584/down-as-upgrade-v0 tv=12: update <tv> level=0 kind=2 v0 -> <refused> 0 <of tv> <down>
    584/down tv=12:
        update <tv> level=0 kind={2|3} -> OK
    584/up: update <tv> level=2 kind=1 -> OK
    584/up-as-downgrade tv=01: update <tv> level=2 kind=2 -> <refused> 2 <of tv> Can't downgrade to a newer version.
    584/same-as-downgrade tv=2:
        update <tv> level=2 kind={2|3} -> OK
    584/nothing: update -> OK
    584/results: update <tv> level=2 kind=1 v1 -> OK; transaction.version OK NONE
    584/results-v0 tv=2: update <tv> level=2 kind=1 v0 -> OK; transaction.version OK NONE
    """,
    **{
        "of tv": "for feature transaction.version.",
        "no type": "The controller does not support the given upgrade type.",
    },
    tv="feature=transaction.version",
    mv="feature=metadata.version",
    refused="INVALID_UPDATE_VERSION; The update failed for all features since the following feature had an error: "
    "Invalid update version",
    local="Local controller 1",
    down="Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
    "downgrade.",
)


CASES = [*LOG, *cases_leaders.CASES, *OFFSETS, *READ, *FEATURES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, CASES)


def test_row(subject: Subject, case: Case) -> None:
    subject.run(case)
