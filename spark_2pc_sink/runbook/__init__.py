"""Runbook: a person is walked through an incident, from the first look to the written record.

``picture`` is the observed state of one sink. ``symptoms`` names its problem, and ``choices`` the possible actions, the
safest first, with the changes of each on either side; ``halt_choices`` has those for halts. All three are pure.
``conversation`` shows, asks, acts and verifies; ``protocol`` is its log. ``sides`` gives the dialogue access to Kafka
and the database, ``readers`` finds transactions that block a topic's consumers.
"""
