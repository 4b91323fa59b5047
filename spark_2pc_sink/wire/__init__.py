"""The encoding of everything sent to and received from Kafka brokers, without the transport.

No module here has a clock, a socket, a random number or a thread.
"""
