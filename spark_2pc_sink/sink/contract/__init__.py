"""The contract of driver and tasks: the values that travel between them, and the columns that both know."""
