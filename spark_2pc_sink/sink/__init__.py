"""The sink: Spark's micro-batches into Kafka and PostgreSQL.

A room imports only rooms below it:

``sink``
    `DualWriteSink`, the object that a user passes to foreachBatch, and one run of one query.
``driver``
    The steps of the recipe for one micro-batch, without Spark. It hands the work to a `BatchWork`.
``job``
    `SparkBatchWork`: the micro-batch as a Spark job. Its shape, its size, and the checks of the query.
``tasks``
    The code that executors run. Either one stage of tasks encodes and sends, or encode tasks hand shuffle batches to
    send tasks.
``transfer``
    COPY bytes on their way to the driver: with the end of a task, or staged while it runs. The copy thread writes them.
``contract``
    All that driver and tasks share: the ticket of an attempt, the plan of its tasks and who owns which partition, the
    columns of a record and of the shuffle, how rows travel to the table, and the receipts of tasks.
``table``
    The target table: its catalog, the plan of its columns, the COPY encoder, and the statements that write.
``report``
    `BatchReport`: the result of a batch, as ``on_batch`` gets it.
"""
