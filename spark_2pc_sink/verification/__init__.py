"""Verification: whether Kafka and the table hold the same, found out without any of our writing code.

Kafka is read by confluent-kafka as a reader of committed records, the table by SQL. What the sink wrote down of its
batches (`jdbc_state`) is a third witness, and read only.

Reading order: ``report`` (the result), ``api`` (`verify`), ``history_check`` (batches against the topics), ``sides`` (the
two sides in the database), ``comparison`` (what differs between them).
"""
