"""The broker's side of SCRAM (RFC 5802, ``ScramSaslServer.java``), and what it keeps of a password.

A user that does not exist gets a salt of its own, the same each time, and fails at the end as one with a wrong password
does: a client cannot find out who exists.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable, Generator
from typing import Final, NamedTuple, Self

from seglog.broker.security.verification import Verified
from seglog.client.security.scram import (
    LEAST_ITERATIONS,
    client_key,
    mixed,
    new_nonce,
    salted_password,
    server_key,
    stored_key,
)

SCRAM_DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MOST_ITERATIONS: Final = 16384
"""``ScramMechanism.MAX_ITERATIONS``."""
_SALT_BYTES: Final = 20
_FIRST: Final = re.compile(
    r"(?P<header>n,(?:a=(?P<authorization>[^,]+))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z0-9]+=[^,]*)*))"
)
_FINAL: Final = re.compile(
    r"(?P<without_proof>c=(?P<channel>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z0-9]+=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_STORED: Final = re.compile(
    r"salt=(?P<salt>[^,]*),stored_key=(?P<stored>[^,]*),server_key=(?P<server>[^,]*),iterations=(?P<count>[0-9]+)"
)


class ScramCredential(NamedTuple):
    """What proves a password without being it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_salted(cls, digest: str, salt: bytes, salted: bytes, iterations: int) -> Self:
        """From a password that was salted elsewhere, as a client does that changes it."""
        key = client_key(digest, salted)
        return cls(salt, stored_key(digest, key), server_key(digest, salted), iterations)

    @classmethod
    def of_password(cls, digest: str, password: str, iterations: int = LEAST_ITERATIONS) -> Self:
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls.of_salted(digest, salt, salted_password(digest, password, salt, iterations), iterations)

    def encode(self) -> str:
        """As Kafka stores it (``ScramCredentialUtils.java``)."""
        return (
            f"salt={_encoded(self.salt)},stored_key={_encoded(self.stored_key)},"
            f"server_key={_encoded(self.server_key)},iterations={self.iterations}"
        )

    @classmethod
    def decode(cls, text: str) -> Self:
        """ValueError if it is none."""
        found = _STORED.fullmatch(text)
        if found is None:
            raise ValueError("it is no credential of SCRAM")
        return cls(_decoded(found["salt"]), _decoded(found["stored"]), _decoded(found["server"]), int(found["count"]))

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class TokenCredential(NamedTuple):
    """Of a delegation token, whose client acts for ``owner`` until ``expires_ms``."""

    credential: ScramCredential
    owner: str
    expires_ms: int


class Invented(NamedTuple):
    """Credentials of users that do not exist: nothing is right for them. ``seed`` is a secret of the cluster."""

    seed: bytes
    iterations: int

    def credential(self, digest: str, user: str) -> ScramCredential:
        salt = hmac.digest(self.seed, f"{digest}:{user}".encode(), "sha256")[:_SALT_BYTES]
        size = len(hmac.digest(b"", b"", digest))
        return ScramCredential(salt, secrets.token_bytes(size), secrets.token_bytes(size), self.iterations)


def scram_server(
    digest: str,
    find: Callable[[str], ScramCredential | None],
    invent: Callable[[str], ScramCredential],
    nonce: Callable[[], str] = new_nonce,
    find_token: Callable[[str], TokenCredential | None] = lambda _: None,
) -> Generator[bytes, bytes, Verified]:
    """``find`` returns the credential of a user, ``find_token`` that of a delegation token; ``invent`` makes one up.
    ValueError if the client does not prove that it knows the password."""
    first = _FIRST.fullmatch(_text((yield b"")))
    if first is None:
        raise ValueError("the client's first message cannot be read")
    user = _user(first["name"])
    if first["authorization"] is not None and _user(first["authorization"]) != user:
        raise ValueError("the client asks to act for another user")
    token = None
    if "tokenauth=true" in first["extensions"].split(","):
        token = find_token(user)
        known = None if token is None else token.credential
    else:
        known = find(user)
    credential = known or invent(user)
    together = first["nonce"] + nonce()
    answer = f"r={together},s={_encoded(credential.salt)},i={credential.iterations}"
    final = _FINAL.fullmatch(_text((yield answer.encode())))
    if final is None:
        raise ValueError("the client's last message cannot be read")
    if not hmac.compare_digest(final["nonce"].encode(), together.encode()):
        raise ValueError("the client's nonce is not that of this exchange")
    if _decoded(final["channel"]) != first["header"].encode():
        raise ValueError("the client binds another channel")
    message = f"{first['bare']},{answer},{final['without_proof']}".encode()
    signature = hmac.digest(credential.stored_key, message, digest)
    proof = _decoded(final["proof"])
    if len(proof) != len(signature):
        raise ValueError("the client's proof has a wrong size")
    is_right = hmac.compare_digest(stored_key(digest, mixed(proof, signature)), credential.stored_key)
    if not is_right or known is None:
        raise ValueError("the client does not know the password")
    answer = f"v={_encoded(hmac.digest(credential.server_key, message, digest))}"
    if token is not None:
        return Verified(token.owner, answer.encode(), token.expires_ms, by_token=True)
    return Verified(user, answer.encode())


def _user(name: str) -> str:
    """RFC 5802: a comma is ``=2C``, an equals sign ``=3D``."""
    if re.search(r"=(?!2C|3D)", name):
        raise ValueError("the client's name cannot be read")
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError("the client's message is not UTF-8") from None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("the client's message has bytes that are not base64") from None
