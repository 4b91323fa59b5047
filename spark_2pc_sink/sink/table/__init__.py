"""The target table: its catalog, the plan of its columns, and the writing of rows inside the deciding transaction."""
