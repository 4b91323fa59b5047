"""TxnOffsetCommit: section 2.5."""

from __future__ import annotations

from tests.conformance.cases import table

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

CASES = [*_VERSIONS, *_OUTCOMES]
