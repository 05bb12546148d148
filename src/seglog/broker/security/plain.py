"""The broker's side of PLAIN (RFC 4616, ``PlainSaslServer.java``): users and passwords of ``sasl.jaas.config``.

::

    …PlainLoginModule required username="broker" password="…" user_broker="…" user_alice="…";

``username`` and ``password`` are those of this broker when it connects to others; ``user_<name>`` are the clients'.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Generator, Mapping
from typing import Final

from seglog.broker.security.verification import Verified
from seglog.client.security.jaas import Jaas
from seglog.core.errors import AuthenticationFailedError

_USER: Final = "user_"
_PARTS: Final = 3


class PlainUsers:
    """Compares passwords in a time that depends neither on the password nor on whether there is such a user."""

    def __init__(self, jaas: Jaas) -> None:
        self._key = secrets.token_bytes(32)
        self._digests: Mapping[str, bytes] = {
            name.removeprefix(_USER): self._digest(password)
            for name, password in jaas.options.items()
            if name.startswith(_USER)
        }
        self._nobody = self._digest(secrets.token_hex(32))

    def __len__(self) -> int:
        return len(self._digests)

    def has(self, user: str, password: str) -> bool:
        return hmac.compare_digest(self._digests.get(user, self._nobody), self._digest(password))

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


def plain_server(users: PlainUsers) -> Generator[bytes, bytes, Verified]:
    """Takes the client's only message; returns its name. `AuthenticationFailedError` has Kafka's words, ValueError is
    for a message that cannot be read."""
    message = yield b""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise ValueError("the message is not UTF-8") from None
    if len(parts) != _PARTS:
        raise ValueError(f"the message has {len(parts)} parts, not {_PARTS}")
    authorization, user, password = parts
    if not user:
        raise AuthenticationFailedError("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailedError("Authentication failed: password not specified")
    if not users.has(user, password):
        raise AuthenticationFailedError("Authentication failed: Invalid username or password")
    if authorization not in ("", user):
        raise AuthenticationFailedError(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    return Verified(user, b"")
