"""Bytes in, bytes out: everything that this package says to a Kafka broker, and nothing of how it gets there.

No module here has a clock, a socket, a random number or a thread.
"""
