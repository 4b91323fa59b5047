"""Coverage-guided fuzzing of what reads bytes and texts of others (`make fuzz`)."""
