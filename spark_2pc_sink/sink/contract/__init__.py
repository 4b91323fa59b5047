"""The contract of driver and tasks: the values passed between them, and the shared column names."""
