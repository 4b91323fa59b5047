"""Monitoring: the sinks of a database observed from outside, for Prometheus and for a person with a browser.

``watched`` reads both sides and the history. ``batch_counters`` totals the history's lines, ``metric_families`` names
the metrics, ``exporter`` serves them to Prometheus. ``dashboard`` is a web page with the same content.
"""
