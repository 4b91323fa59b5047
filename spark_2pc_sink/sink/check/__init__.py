"""Check of a sink before its first batch: everything that can be found out without changes, with remedies."""
