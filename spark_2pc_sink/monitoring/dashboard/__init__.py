"""The dashboard: a web page for a person who looks after sinks, made on the server, without JavaScript.

``app`` has the pages' addresses, ``access`` who may come in and from where. ``sink_views`` says what a page shows of a
sink, ``recovery_choices`` what a person may choose there, ``charts`` draws. ``server`` serves it all.
"""
