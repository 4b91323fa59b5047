"""Sockets, TLS and SASL: from accepted connections to ordered requests."""
