"""Handlers: one module an API group. Each turns a request into events or calls, and the outcome into its answer."""
