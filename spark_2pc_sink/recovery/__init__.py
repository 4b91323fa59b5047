"""Recovery: on restart the sink reads its state row and commits, aborts or sends again the Kafka half.

``recovery`` is the one procedure for every case. It asks ``diagnosis`` for the verdict on both sides, which gets the
pure rules of ``spark_2pc_sink.recipe`` what they decide by: ``control_marker``, ``kept_batches``, ``lost_commits`` and
``open_transaction`` read it in Kafka. ``commit`` ends a decided transaction. ``report`` has what was found and done.
``api`` is the same for operators: `recover` and `status`; ``recover_command`` is the command that messages print.
"""
