"""Recovery: on restart the sink reads its state row and commits, aborts or resends the Kafka half.

``recovery`` is the one procedure for every case. It asks ``diagnosis`` for the verdict on both sides, which gives the
pure rules of ``spark_2pc_sink.recipe`` their input, and reads it in Kafka with ``lost_commits``. ``report`` has
findings and actions. ``resend`` sends a service's records again. ``api`` is the interface for operators: `recover` and
`status`, which is made by ``sink_survey``; ``recover_command`` has the words that name a sink in commands.
"""
