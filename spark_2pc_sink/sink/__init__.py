"""The sink: Spark's micro-batches into both sides.

Reading order: ``sink`` (what a user passes to foreachBatch), ``batch`` with ``deciding_scope`` (the steps of the
recipe on the driver), ``work`` (a micro-batch as one Spark job), ``frame`` (its columns), ``pace``, ``job_shape`` and
``waves`` (how many tasks), ``arrow_bound`` (how many rows at a time), ``spark_tasks`` (what they run), ``task_plan``
and ``topics`` (what tasks are told), ``partition_task`` (a task that reads and sends), ``source_task``, ``pieces`` and
``sending_task`` (one that reads, what it hands over, and one that sends), ``row_router`` and ``routing`` (which row
goes to which partition, and whose that is), ``upsert_order``, ``superseded``, ``winners`` and ``record_places`` (which
record of an upsert key is the last), ``receipts`` (what tasks return), ``rows`` (the database half:
``columns``, ``copy_encoder``, ``row_feed``, ``row_copy``, ``staging`` in tables or in files, ``database``,
``late_rows``),
``local_folder`` and ``piece_files`` (what tasks of one machine hand on by files), ``spark_facts`` and ``attempts``
(what Spark says of itself).
"""
