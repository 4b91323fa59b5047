"""What becomes a table row: the table's catalog, the plan of its columns, COPY bytes, and writing them."""
