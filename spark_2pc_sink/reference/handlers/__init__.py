"""One module per family of requests: messages to events or calls, and what comes back to messages."""
