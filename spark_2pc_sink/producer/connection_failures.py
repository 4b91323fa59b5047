"""What a failed connection comes to: ask again, or end with an error that no repetition changes."""

from __future__ import annotations

import ssl
from typing import Final

from kafka import errors as kafka_errors

from spark_2pc_sink.causes import causes
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AuthorizationError, ConfigurationError
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.producer.broker_tokens import BrokerTokens
from spark_2pc_sink.producer.listener_probe import Listener, probe
from spark_2pc_sink.producer.tls_refusals import TlsFailedError, protocol_refusal, tls_refusal

#: By these a broker ends a connection without a word, one that is stopping as well as one of another protocol.
_ENDED: Final = (ConnectionResetError, BrokenPipeError, TlsFailedError)
#: kafka-python has no class for it, only these words.
_ENDED_WORDS: Final = "socket disconnected"


class NodeUnavailableError(Exception):
    """One broker could not be asked, or gave no answer: ask again, or ask another. Never leaves this package."""


class ConnectionFailures:
    """Judges the failures of one client's connections.

    Args:
        options: what connections are made with.
        tokens: that they show; None without tokens.
    """

    def __init__(self, options: KafkaOptions, tokens: BrokerTokens | None) -> None:
        self._options = options
        self._tokens = tokens
        self._answered: set[int | str] = set()

    def note_answer(self, node_id: int | str) -> None:
        """A broker has answered a request: our settings are those that it wants."""
        self._answered.add(node_id)

    def judge(
        self, node_id: int | str, address: tuple[str, int] | None, error: BaseException, tls: ssl.SSLContext | None
    ) -> Exception:
        """The exception for a failure of kafka-python's.

        Args:
            node_id: of the broker.
            address: its host and port; None where nobody knows them any more.
            error: of kafka-python, or of what it calls.
            tls: that its connections have.

        Returns:
            `NodeUnavailableError` where another attempt may succeed; else the error to end with.
        """
        if isinstance(error, (AuthorizationError, ConfigurationError)):
            return error  # of the token source
        where = _named(node_id, address)
        refused = self._tls_refusal(where, error) or self._login_refusal(where, error)
        if refused is None and node_id not in self._answered:
            refused = self._protocol_refusal(where, address, error, tls)
        return refused or NodeUnavailableError(f"{where}: {error}")

    def _tls_refusal(self, where: str, error: BaseException) -> Exception | None:
        failed = next((each for each in causes(error) if isinstance(each, TlsFailedError)), None)
        return None if failed is None else tls_refusal(failed, where, self._options)

    def _login_refusal(self, where: str, error: BaseException) -> Exception | None:
        if isinstance(error, kafka_errors.UnsupportedSaslMechanismError):
            detail = f"does not know sasl.mechanism={self._options.sasl_mechanism}. Use one that is in "
            return _login_error(
                "SaslHandshake", error, f"the {where} {detail}sasl.enabled.mechanisms there, or add this one"
            )
        if not isinstance(error, kafka_errors.SaslAuthenticationFailedError):
            return None
        if self._tokens is not None and self._tokens.refused():
            return NodeUnavailableError(f"{where} refused a token that was in use: {error}")
        return _login_error(
            "SaslAuthenticate", error, f"the {where} refused the login of {self._who()}: {_words(error)}"
        )

    def _who(self) -> str:
        options = self._options
        user = options.sasl_username or options.oauth_client_id
        return f"{'its principal' if user is None else f'user {user!r}'} with {options.sasl_mechanism}"

    def _protocol_refusal(
        self, where: str, address: tuple[str, int] | None, error: BaseException, tls: ssl.SSLContext | None
    ) -> Exception | None:
        """Whether a broker that has answered nothing yet wants another protocol."""
        if isinstance(error, kafka_errors.IllegalSaslStateError):
            without = "SSL" if self._options.security_protocol == "SASL_SSL" else "PLAINTEXT"
            detail = f"takes no logins at this port. Set security.protocol={without}, or give another port"
            return _login_error("SaslHandshake", error, f"the {where} {detail}")
        return self._after_probe(where, probe(*address, tls)) if address is not None and _has_ended(error) else None

    def _after_probe(self, where: str, found: Listener) -> Exception | None:
        options = self._options
        if found.without_tls:
            return protocol_refusal(where, options, peer_has_tls=False)
        if found.tls_failed is not None:
            return tls_refusal(found.tls_failed, where, options)
        if not found.mechanisms or options.security_protocol.startswith("SASL"):
            return None
        return AuthorizationError(
            api="SaslHandshake",
            code=Code.SASL_AUTHENTICATION_FAILED,
            name=Code.SASL_AUTHENTICATION_FAILED.name,
            detail=f"the {where} wants a login, by {' or '.join(found.mechanisms)}. Set security.protocol="
            f"{'SASL_SSL' if options.security_protocol == 'SSL' else 'SASL_PLAINTEXT'}, sasl.mechanism and what that "
            "needs",
        )


def _login_error(api: str, error: kafka_errors.BrokerResponseError, detail: str) -> AuthorizationError:
    return AuthorizationError(api=api, code=error.errno, name=error.message, detail=detail)


def _has_ended(error: BaseException) -> bool:
    """Whether there was a connection, which the broker has ended."""
    return any(isinstance(each, _ENDED) or _ENDED_WORDS in each.args for each in causes(error))


def _named(node_id: int | str, address: tuple[str, int] | None) -> str:
    """The broker for messages; one that was named by its address has no number yet."""
    if address is None:
        return f"broker {node_id}"
    number = f" {node_id} at" if isinstance(node_id, int) else ""
    return f"broker{number} {address[0]}:{address[1]}"


def _words(error: BaseException) -> str:
    """What the broker said, behind kafka-python's names of the error."""
    text = str(error.args[0]) if error.args else str(error)
    return text.removeprefix(f"{type(error).__name__}: ")
