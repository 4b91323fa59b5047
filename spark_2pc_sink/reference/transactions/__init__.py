"""The transaction coordinator's I/O: its log, its end markers, and the verification of partitions."""
