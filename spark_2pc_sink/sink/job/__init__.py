"""One micro-batch as a Spark job: its shape, its size, and the checks of the query that calls the sink."""
