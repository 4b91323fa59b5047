"""Apache Kafka with a listener that asks for tokens, and the issuer of these."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from spark_2pc_sink.testing import KafkaBroker, free_port
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM
from tests.harness.token_issuer import TokenIssuer

LISTENER = "TOKENS"


class TokenBroker:
    """A broker with two listeners: one asks for nothing, the other one for a token. Use it as a context manager.

    Attributes:
        broker: itself.
        issuer: of the tokens.
        bootstrap: address of the listener that asks for nothing.
        tokens_address: address of the listener that asks for tokens.
    """

    def __init__(self) -> None:
        self.issuer = TokenIssuer()
        self.broker = KafkaBroker(two_phase_commit=True, jvm_options=(*QUICK_START_JVM, self.issuer.broker_jvm_option))
        self.bootstrap = self.broker.bootstrap
        self.tokens_address = f"127.0.0.1:{free_port()}"
        properties = self.broker.properties
        for name in ("listeners", "advertised.listeners"):
            properties[name] += f",{LISTENER}://{self.tokens_address}"
        properties["listener.security.protocol.map"] += f",{LISTENER}:SASL_PLAINTEXT"
        properties |= self.issuer.broker_properties(LISTENER)

    def __enter__(self) -> TokenBroker:
        self.issuer.__enter__()
        try:
            self.broker.start()
        except BaseException:
            self.issuer.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.close()
        self.issuer.__exit__(kind, error, trace)

    def create_topic(self, name: str, *, partitions: int = 1) -> str:
        """See `LocalBroker.create_topic`."""
        return self.broker.create_topic(name, partitions=partitions)

    def client_properties(self, oauth_cb: Callable[[str], Any] | None = None) -> dict[str, Any]:
        """Kafka properties of a client, which gets tokens from the issuer's endpoint or from a function."""
        login = self.issuer.client() if oauth_cb is None else {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": oauth_cb}
        return {"bootstrap.servers": self.tokens_address, "security.protocol": "SASL_PLAINTEXT", **login}
