"""Verification: whether Kafka and the table hold the same, found out without any of our writing code.

Kafka is read by confluent-kafka as a reader of committed records, the table by SQL. What the sink wrote down of its
batches (`jdbc_state`) is a third witness, and read only.

Reading order: ``api`` (what is asked), ``report`` (what is answered), ``verification`` (the procedure), ``evidence``
(what is looked at, and in which order). The topics against the history: ``topic_reader``, ``history``. The topics
against a table: ``table_pairs`` (which topics), ``target`` and ``columns`` (what equal means), ``statements`` and
``staging`` (records on their way into the database), ``table_comparison``, ``unmatched`` (what differs, by name) and
``missing_files`` (repairs). Dead letters: ``letters``. An open transaction alone: ``open_records``.
"""
