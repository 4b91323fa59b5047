"""Recovery: on restart the sink reads its state row and commits, aborts or sends again the Kafka half.

``recovery`` is the one procedure for every case; ``kept_batches``, ``lost_commits``, ``control_marker`` and
``open_transaction`` look things up in Kafka for it. ``api`` is the same for operators: `recover` and `status`.
"""
