"""SASL/PLAIN (RFC 4616): user name and password in one message. The texts are those of Kafka's PlainSaslServer."""

from __future__ import annotations

import hmac
from typing import Final

from spark_2pc_sink.reference.config.listeners import Users
from spark_2pc_sink.reference.network.exchange import LoginRefusedError

_REFUSED: Final = "Authentication failed: Invalid username or password"


class PlainExchange:
    """See `Exchange`.

    Args:
        users: who may log in.
    """

    def __init__(self, users: Users) -> None:
        self._users = users

    def evaluate(self, message: bytes) -> tuple[bytes, str | None]:
        """See `Exchange.evaluate`; one message is all."""
        parts = message.split(b"\x00")
        if len(parts) != 3:  # noqa: PLR2004 - authorization id, user name, password
            raise LoginRefusedError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        try:
            authorization_id, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise LoginRefusedError(_REFUSED) from None
        if not user or not password:
            raise LoginRefusedError(f"Authentication failed: {'password' if user else 'username'} not specified")
        # Compared for unknown users too, so that the time does not tell who exists; no password is empty.
        expected = self._users.passwords.get(user, "")
        if not hmac.compare_digest(expected.encode(), password.encode()):
            raise LoginRefusedError(_REFUSED)
        if authorization_id not in {"", user}:
            detail = "Client requested an authorization id that is different from username"
            raise LoginRefusedError(f"Authentication failed: {detail}")
        return b"", user
