"""Requests and responses of the Kafka protocol, as handlers see them and as bytes."""
