"""One SASL mechanism on the server's side: messages of the client in, challenges out, until it is known or refused."""

from __future__ import annotations

from typing import Protocol


class LoginRefusedError(Exception):
    """The client may not come in.

    Args:
        told: what Kafka tells the client.
        reason: more, for the log only.
    """

    def __init__(self, told: str, reason: str | None = None) -> None:
        super().__init__(told)
        self.told = told
        self.logged: str = told if reason is None else f"{told} ({reason})"


class Exchange(Protocol):
    """The messages of one login; one object for each."""

    def evaluate(self, message: bytes) -> tuple[bytes, str | None]:
        """The answer to a message of the client.

        Returns:
            What to send, and the user's name once the exchange is complete; None while another message has to come.

        Raises:
            LoginRefusedError: the login has failed, and with it the exchange.
        """
        ...
