"""Logins by tokens and tickets: where they come from, and how long each is used."""
