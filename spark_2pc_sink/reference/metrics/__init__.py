"""Metrics of the reference coordinator, and their Prometheus endpoint."""
