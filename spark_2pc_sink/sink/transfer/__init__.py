"""What tasks send, on its way through the driver: records to the brokers, rows into the tables."""
