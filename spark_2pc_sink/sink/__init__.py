"""The sink: Spark's micro-batches into both sides.

Reading order: ``sink`` (what a user passes to foreachBatch), ``batch`` (the steps of the recipe on the driver),
``work`` (a micro-batch as one Spark job), ``frame`` and ``routing`` (which rows go to which task), ``partition_task``
(a task), ``receipts`` (what it returns), ``rows`` (the database half: ``columns``, ``copy_encoder``, ``staging``,
``database``), ``spark_facts`` and ``attempts`` (what Spark says of itself).
"""
