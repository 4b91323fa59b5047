"""Recovery: on restart the sink reads its state row and commits, aborts or resends the Kafka half.

``recovery`` is the one procedure for every case. It asks ``diagnosis`` for the verdict on both sides, which gives the
pure rules of ``spark_2pc_sink.recipe`` their input. ``report`` has findings and actions. ``api`` is the interface for
operators: `recover`, `history`, and `status`, which is made by ``sink_survey``.
"""
