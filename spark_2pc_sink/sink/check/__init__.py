"""Check of a sink before its first batch: all that can be found out without changing anything, with remedies.

``findings`` (what was found, one line each), ``kafka_side`` and ``database_side`` (the questions), ``kafka_rules`` and
``database_rules`` (what an answer means; pure), ``guarantee`` (what the settings promise; pure), ``schema_side`` (rows
and tables, which needs Spark), ``check`` (all of it).
"""
