"""The path of the tasks' output through the driver: records to the brokers, rows into the tables."""
