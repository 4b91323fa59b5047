"""The pure decisions of the dual-write recipe (KIP-939, "Normal processing recipe" and "Recovery recipe").

``steps`` names the steps of a batch in order. ``placement`` decides whether a batch is run, skipped or resent, also
after batches that were skipped. ``resolve`` decides what recovery does about two sides that differ; ``kept_records``
and ``lost_batches`` are its rules for lost topics and lost commits. What a person can do about a halt is in
`spark_2pc_sink.choices`.

None of them does I/O, reads a clock or draws a random number: the same input gives the same answer, in a running job,
in recovery and in a simulation.
"""
