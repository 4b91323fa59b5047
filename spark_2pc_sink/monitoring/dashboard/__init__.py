"""The dashboard: a web page for operators of sinks, rendered on the server, without JavaScript.

``app`` has the pages' routes, ``access`` the access rules. ``sink_views`` renders a sink,
``charts`` the charts. ``server`` serves it all.
"""
