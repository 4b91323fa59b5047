"""The sink: Spark's micro-batches into Kafka and PostgreSQL.

A room imports only rooms below it:

``sink``
    `DualWriteSink`, the object that a user passes to foreachBatch, and one run of one query.
``driver``
    The steps of the recipe for one micro-batch, without Spark. It hands the work to a `BatchWork`.
``job``
    `SparkBatch`: the micro-batch as a Spark job. Its size, and the checks of the query.
``tasks``
    The code that executors run: rows become record batches and COPY bytes.
``transfer``
    Driver threads for that output: one forwards records to the brokers, another copies rows into the table.
``contract``
    What driver and tasks share: the ticket of an attempt, the plan of its tasks, the columns of a record, and the
    receipts of tasks.
``stream``
    The connection between a task and the driver: frames, the listener, and buffering.
``table``
    The target table: its catalog, the plan of its columns, the COPY encoder, and the statements that write.
``report``
    `BatchReport`: the result of a batch, as ``on_batch`` gets it.
"""
