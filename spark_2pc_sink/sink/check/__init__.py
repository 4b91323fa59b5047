"""Check of a sink before its first batch: everything that can be found out without changes, with remedies.

``findings`` (one line per finding), ``kafka_side`` and ``database_side`` (the queries), ``kafka_rules`` and
``database_rules`` (interpretation of the answers; pure), ``guarantee`` (what the settings guarantee; pure),
``schema_side`` (rows against tables; needs Spark), ``check`` (the entry point).
"""
