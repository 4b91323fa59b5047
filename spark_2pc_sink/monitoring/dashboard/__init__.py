"""The dashboard: a web page for operators of sinks, rendered on the server, without JavaScript.

``app`` has the pages and serves them, ``access`` the access rules. ``sink_views`` renders a sink and its charts.
"""
