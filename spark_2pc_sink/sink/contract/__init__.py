"""What driver and tasks agree on: the values that travel between them, and the columns that both know."""
