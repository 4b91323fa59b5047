"""Requests and responses of the Kafka protocol, and their dispatch to handlers."""
