"""The bytes of one partition: record batches in segment files, recovered after a crash, durable by group commit.

Reading order: `batches` (headers, the broker's own batches, their records), `files` (a segment file on disk or
in memory), `segmented_log` (the segments of a partition: index, append, roll, read, recovery; many waiters, one
fdatasync). Producers, transactions and readers are handled in `partition_log`.
"""
