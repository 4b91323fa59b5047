"""The bytes of one partition: record batches in segment files, found again after a crash, durable by group commit.

Reading order: `batches` (headers, batches of the broker's own, the records inside), `files` (a segment file on disk or
in memory), `segmented_log` (the segments of a partition: index, append, roll, read, recovery), `group_sync` (many
waiters, one fdatasync). Nothing here knows of producers, transactions or readers: that is `partition_log`.
"""
