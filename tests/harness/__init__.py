"""What tests share, beside ``spark_2pc_sink.testing``: who provides the servers."""
