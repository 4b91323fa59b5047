"""The sink: Spark's micro-batches into Kafka and PostgreSQL. ARCHITECTURE.md has its rooms, and the way of a batch.

Read ``query_run``, ``driver.batch_driver`` (the recipe) and ``job.spark_batch`` (the work in Spark) first.
"""
