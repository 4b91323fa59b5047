"""Verification: whether Kafka and the table agree, determined without our own writing code.

Kafka is read by confluent-kafka as a read_committed consumer, the table by SQL. The sink's notes on its batches
(`jdbc_state`) are a third source of evidence, and only read.

Reading order: ``api`` (the arguments), ``report`` (the result), ``verification`` (the evidence, the order of reading,
the procedure), ``topic_reader`` and ``own_client``, ``history`` (the judgement of batches). The topics against a table:
``table_pairs`` (which topics), ``target`` and ``columns`` (what equal means), ``staging`` (loading records into the
database), ``table_comparison``, and ``repairs`` (files and next commands). Dead letters: ``dead_letters``.
"""
