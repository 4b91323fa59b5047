"""Monitoring: the sinks of a database observed from outside, for Prometheus and for a person with a browser.

``watched`` reads both sides and the history. ``exporter`` totals the history's lines, and serves the metrics to
Prometheus. ``dashboard`` is a web page with the same content.
"""
