"""Code that runs in Spark's tasks: rows to record batches and COPY bytes, and record batches to Kafka."""
