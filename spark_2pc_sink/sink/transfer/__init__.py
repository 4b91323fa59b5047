"""COPY bytes on their way from tasks to the driver: inline, or staged in a table or a file."""
