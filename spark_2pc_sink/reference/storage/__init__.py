"""The bytes of one partition: record batches in segment files, found again after a crash, durable by group commit.

Reading order: `batches` (headers, and how the broker builds batches of its own), `records` (what is inside), `files`
(a segment file on disk or in memory), `segments` (a file with its sparse index), `segmented_log` (the segments of a
partition: append, roll, read), `recovery` (what opening does), `group_sync` (many waiters, one fdatasync). Nothing
here knows of producers, transactions or readers: that is `partition_log`.
"""
