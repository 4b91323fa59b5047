"""Broker properties and topic configs: names, defaults and bounds as in Apache Kafka."""
