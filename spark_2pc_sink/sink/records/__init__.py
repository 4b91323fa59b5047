"""What becomes a Kafka record: columns, key, JSON, topics; and the driver's sending of record batches."""
