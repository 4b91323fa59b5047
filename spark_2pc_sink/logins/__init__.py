"""Logins by tokens and tickets: their sources and lifetimes."""
