"""Runbook: a person is walked through an incident, from the first look to the written record.

``picture`` is what was seen of one sink. ``symptoms`` gives it a name, and ``choices`` what can be done about it, the
safest first, with what each would change on either side; ``halt_choices`` has those of halts. All three are pure.
``conversation`` shows, asks, acts and verifies; ``protocol`` writes down what was done. ``sides`` is Kafka and the
database as the conversation uses them, ``readers`` what holds the readers of a topic up.
"""
