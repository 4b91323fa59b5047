"""Runbook: a person is walked through an incident, from the first look to the written record.

``picture`` is the observed state of one sink; it determines the problem, and so the choices, of which the table is in
`spark_2pc_sink.choices`. ``conversation`` shows, asks, acts, verifies and keeps the log. ``sides`` gives the
dialogue access to Kafka and the database, and finds transactions that block a topic's consumers.
"""
