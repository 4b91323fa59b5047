"""SCRAM on the server's side (RFC 5802, RFC 7677): the client proves a password, and the server that it knows it.

What is checked, in which order and with which text is that of Kafka's ScramSaslServer. So an unknown user is refused
at the first message, which tells a client who exists.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from spark_2pc_sink.reference.config.listeners import Users
from spark_2pc_sink.reference.network.exchange import LoginRefusedError

#: The hash function of each mechanism, by hashlib's name.
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Kafka's minimum for both mechanisms. A credential takes some milliseconds, and other connections wait meanwhile.
ITERATIONS: Final = 4096
_SALT_BYTES: Final = 16
#: Credentials that are kept; one that has been dropped is made anew, with another salt.
_CREDENTIALS_MAX: Final = 1_024
#: RFC 5802, section 7. The optional parts between name, nonce and proof are extensions, which Kafka ignores too.
_CLIENT_FIRST: Final = re.compile(
    r"(?P<header>n,(?:a=(?P<authorization_id>[^,]+))?,)"
    r"(?P<bare>(?:m=[^,]+,)?n=(?P<user>(?:[^=,]|=2C|=3D)+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,]+)*)"
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<without_proof>c=(?P<channel>[A-Za-z0-9+/]+={0,2}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)


@dataclass(frozen=True)
class _Credential:
    """What a server keeps of a password (RFC 5802, section 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes


@dataclass(frozen=True)
class _Begun:
    """What the first two messages have said."""

    user: str
    credential: _Credential
    channel: bytes
    nonce: str
    messages: str


class ScramExchange:
    """See `Exchange`.

    Args:
        users: who may log in.
        mechanism: SCRAM-SHA-256 or SCRAM-SHA-512.
    """

    def __init__(self, users: Users, mechanism: str) -> None:
        self._users = users
        self._mechanism = mechanism
        self._begun: _Begun | None = None

    def evaluate(self, message: bytes) -> tuple[bytes, str | None]:
        """See `Exchange.evaluate`; two messages are all."""
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise self._refused("a message is no UTF-8") from None
        if self._begun is None:
            return self._first(text), None
        return self._final(text, self._begun), self._begun.user

    def _first(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise self._refused("the first message has another form")
        user = found["user"].replace("=2C", ",").replace("=3D", "=")
        password = self._users.passwords.get(user)
        if password is None:
            raise self._refused("there is no such user")
        if found["authorization_id"] not in {None, found["user"]}:
            detail = "Client requested an authorization id that is different from username"
            raise LoginRefusedError(f"Authentication failed: {detail}")
        credential = _credential(self._mechanism, user, password)
        nonce = found["nonce"] + secrets.token_hex(_SALT_BYTES)
        answer = f"r={nonce},s={base64.b64encode(credential.salt).decode()},i={ITERATIONS}"
        messages = f"{found['bare']},{answer}"
        self._begun = _Begun(user, credential, found["header"].encode(), nonce, messages)
        return answer.encode()

    def _final(self, text: str, begun: _Begun) -> bytes:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise self._refused("the second message has another form")
        try:
            channel, proof = (base64.b64decode(found[name], validate=True) for name in ("channel", "proof"))
        except binascii.Error:
            raise self._refused("the second message has another form") from None
        if found["nonce"] != begun.nonce or channel != begun.channel:
            raise self._refused("the second message belongs to another first one")
        authenticated = f"{begun.messages},{found['without_proof']}".encode()
        client_signature = self._hmac(begun.credential.stored_key, authenticated)
        if len(proof) != len(client_signature):
            raise self._refused("the proof has another length")
        client_key = bytes(one ^ other for one, other in zip(proof, client_signature, strict=True))
        stored_key = hashlib.new(_HASHES[self._mechanism], client_key).digest()
        if not hmac.compare_digest(stored_key, begun.credential.stored_key):
            raise self._refused("the password is another")
        return b"v=" + base64.b64encode(self._hmac(begun.credential.server_key, authenticated))

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, _HASHES[self._mechanism])

    def _refused(self, reason: str) -> LoginRefusedError:
        """Kafka's SaslServerAuthenticator tells no more than this (KIP-152)."""
        told = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        return LoginRefusedError(f"{told} {self._mechanism}", reason)


@lru_cache(maxsize=_CREDENTIALS_MAX)
def _credential(mechanism: str, _user: str, password: str) -> _Credential:
    """A credential of this process; each user has a salt of their own."""
    name, salt = _HASHES[mechanism], secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, ITERATIONS)
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return _Credential(salt, stored_key, hmac.digest(salted, b"Server Key", name))
