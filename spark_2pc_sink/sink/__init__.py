"""The sink: Spark's micro-batches into Kafka and PostgreSQL.

A room imports only rooms below it:

``sink``
    `DualWriteSink`, the object that a user passes to foreachBatch; ``query_run``: one run of one query.
``check``
    What can be found out before the first batch.
``job``
    `SparkBatch`: the micro-batch as a Spark job, and the code of its tasks. Its size, and the checks of the query.
``records``
    What becomes a Kafka record: columns, key, JSON, topics; and the thread that forwards record batches to the brokers.
``bad_rows``
    Rows that an output refused: found by bisection, and kept as dead letters.
``rows``
    What becomes a table row: the table's catalog, the plan of its columns, COPY bytes; and the thread that copies them.
``stream``
    The connection between a task and the driver: frames, the listener, buffering, and the driver's threads.
``driver``
    The steps of the recipe for one micro-batch, without Spark. It hands the work to a `BatchWork`.
``report``
    `BatchReport`: the result of a batch, as ``on_batch`` gets it.
"""
