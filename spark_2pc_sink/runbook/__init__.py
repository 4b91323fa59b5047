"""Runbook: a person is walked through an incident, from the first look to the written record.

``sides`` gives the dialogue access to Kafka and the database, finds transactions that block a topic's consumers, and
makes the picture of one sink; it determines the problem, and so the choices, of which the table is in
`spark_2pc_sink.choices`. ``conversation`` shows, asks, acts, verifies and keeps the log.
"""
