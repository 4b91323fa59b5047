"""Verification: whether Kafka and the table hold the same, found out without any of our writing code.

Kafka is read by confluent-kafka as a reader of committed records, the table by SQL. What the sink wrote down of its
batches (`jdbc_state`) is a third witness, and read only.

Reading order: ``report`` (the result), ``api`` (`verify`), ``verification`` (the procedure), ``evidence`` (what is
looked at, and in which order). The history: ``claims`` (the offsets that batches say are theirs), ``tally`` (what the
topics hold there), ``history_check``. The table: ``column_rules`` and ``spelt_times`` (what equal means), ``side_sql``
(the statements), ``staging`` and ``reading`` (records on their way into the database), ``comparison``, ``lone`` (what
differs, by name). Kafka is read in ``topic_reader``. ``open_records`` is about an open transaction alone,
``missing_files`` about repairs.
"""
