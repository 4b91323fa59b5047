"""One micro-batch as a Spark job: its columns, its tasks, its size, and the checks of the query."""
