"""SCRAM (RFC 5802, RFC 7677) without channel binding, as Kafka has it (KIP-84).

Names and passwords are UTF-8 as given: Kafka does not normalize them (``ScramFormatter.java``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Generator
from typing import Final

LEAST_ITERATIONS: Final = 4096
_MOST_ITERATIONS: Final = 1_000_000
"""About half a second. A broker that asks for more could keep every client busy; Kafka's limit is 16384."""
_HEADER: Final = "n,,"
_FIRST: Final = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,.*)?")
_FINAL: Final = re.compile(r"(?:e=([^,]*)|v=([A-Za-z0-9+/=]+))(?:,.*)?")


def new_nonce() -> str:
    return secrets.token_urlsafe(24)


def scram(
    digest: str, user: str, password: str, nonce: str, *, is_token: bool = False
) -> Generator[bytes, bytes, None]:
    """Yields the client's messages and takes the broker's; ends when the broker has proved that it knows the password.

    ``digest`` is a name of `hashlib`. ValueError says why the broker is not trusted. ``is_token``: user and password
    are a delegation token (KIP-48).
    """
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}" + (",tokenauth=true" if is_token else "")
    answer = _text((yield (_HEADER + first).encode()))
    if found := _FINAL.fullmatch(answer):
        raise ValueError(f"the broker answers {found[1]!r}")
    match = _FIRST.fullmatch(answer)
    if match is None:
        raise ValueError("the broker's first message cannot be read")
    if not match[1].startswith(nonce) or match[1] == nonce:
        raise ValueError("the broker's nonce does not continue the client's")
    iterations = int(match[3])
    if not LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise ValueError(
            f"the broker asks for {iterations} iterations: {LEAST_ITERATIONS} to {_MOST_ITERATIONS} are allowed"
        )
    salted = salted_password(digest, password, _decoded(match[2]), iterations)
    key = client_key(digest, salted)
    without_proof = f"c={_encoded(_HEADER.encode())},r={match[1]}"
    message = f"{first},{answer},{without_proof}".encode()
    proof = mixed(key, hmac.digest(stored_key(digest, key), message, digest))
    final = _FINAL.fullmatch(_text((yield f"{without_proof},p={_encoded(proof)}".encode())))
    if final is None:
        raise ValueError("the broker's last message cannot be read")
    if final[1] is not None:
        raise ValueError(f"the broker answers {final[1]!r}")
    wanted = hmac.digest(server_key(digest, salted), message, digest)
    if not hmac.compare_digest(wanted, _decoded(final[2])):
        raise ValueError("the broker's signature is wrong: it does not know the password")


# The values of RFC 5802, section 3, for both sides.


def salted_password(digest: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)


def client_key(digest: str, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", digest)


def server_key(digest: str, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", digest)


def stored_key(digest: str, key: bytes) -> bytes:
    """What a broker keeps of a client's key."""
    return hashlib.new(digest, key).digest()


def mixed(left: bytes, right: bytes) -> bytes:
    """Exclusive or."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("the broker's message has bytes that are not base64") from None
