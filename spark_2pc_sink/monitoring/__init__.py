"""Monitoring: the sinks of a database watched from outside, for Prometheus and for a person with a browser.

``watched`` asks both sides and the history. ``batch_counters`` adds up the history's lines, ``metric_families`` names
the figures, ``exporter`` serves them to Prometheus. ``dashboard`` is a web page of the same.
"""
