"""Handlers: one module per API group. Each turns a request into events or calls, and the result into its answer."""
