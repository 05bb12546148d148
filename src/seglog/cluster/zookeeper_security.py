"""How a client proves to ZooKeeper who it is, and whom it lets change its nodes.

DIGEST-MD5 (RFC 2831) is the mechanism that ZooKeeper has for names and passwords. Its hashes are weak: without TLS, who
sees a login can guess the password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from hashlib import md5
from secrets import token_hex
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import ssl

_REALM: Final = "zk-sasl-md5"
"""ZooKeeper uses this name instead of that of the host (``SecurityUtils.java``)."""
_URI: Final = f"zookeeper/{_REALM}"
_COUNT: Final = "00000001"
_FIELD: Final = re.compile(rb'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))\s*(?:,|$)')


class LoginRefusedError(Exception):
    """ZooKeeper refuses the login, or does not prove that it knows the password."""


class Login(NamedTuple):
    """``key`` is the key of the configuration that it came from."""

    user: str
    password: str
    key: str

    def __repr__(self) -> str:
        return f"Login({self.user})"


class Access(Enum):
    """Whom the creator of a node lets use it, if it sets ACLs: nobody else; all to read; all to read and to create
    nodes below it."""

    PRIVATE = "private"
    READABLE = "readable"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSecurity:
    """``context`` and ``login`` read their files again for each connection. They raise `InvalidConfigError`.

    ``explain`` says why a connection failed that may have failed for its TLS: a sentence, and whether it is certain
    that another attempt fails too. ``sets_acls``: nodes that this client creates are its own.
    """

    context: Callable[[], ssl.SSLContext] | None = None
    login: Callable[[], Login] | None = None
    explain: Callable[[BaseException], tuple[str, bool]] | None = None
    sets_acls: bool = False


PLAIN: Final = ZooKeeperSecurity()


def digest_login(login: Login, nonce: Callable[[], str] = token_hex) -> Generator[bytes, bytes, None]:
    """Yield what the client says, and take the answers of the server. `LoginRefusedError`.

    >>> talk = digest_login(Login("chris", "secret", ""), lambda: "OA6MHXh6VqTrRk")
    >>> next(talk)
    b''
    >>> answer = talk.send(b'realm="zk-sasl-md5",nonce="OA6MG9tEQGm2hh",qop="auth",charset=utf-8,algorithm=md5-sess')
    >>> talk.send(b"rspauth=0")
    Traceback (most recent call last):
    seglog.cluster.zookeeper_security.LoginRefusedError: the server does not know the password of chris
    """
    challenge = _fields((yield b""))
    if "nonce" not in challenge or "auth" not in challenge.get("qop", "auth").split(","):
        raise LoginRefusedError("the server has no DIGEST-MD5: it needs a login section and authProvider.sasl")
    realm, client_nonce = challenge.get("realm", _REALM), nonce()
    answer = (
        f'username="{_quoted(login.user)}",realm="{_quoted(realm)}",nonce="{_quoted(challenge["nonce"])}",'
        f'nc={_COUNT},cnonce="{client_nonce}",digest-uri="{_URI}",maxbuf=65536,'
        f"response={_proof(login, realm, challenge['nonce'], client_nonce, 'AUTHENTICATE')},qop=auth,charset=utf-8"
    )
    proof = _fields((yield answer.encode())).get("rspauth")
    if proof != _proof(login, realm, challenge["nonce"], client_nonce, ""):
        raise LoginRefusedError(f"the server does not know the password of {login.user}")


def _proof(login: Login, realm: str, nonce: str, client_nonce: str, method: str) -> str:
    """``response``, and ``rspauth`` without a method (RFC 2831, 2.1.2.1)."""
    secret = md5(b":".join(map(_hashed, (login.user, realm, login.password))), usedforsecurity=False).digest()
    session = _md5(secret + f":{nonce}:{client_nonce}".encode())
    return _md5(f"{session}:{nonce}:{_COUNT}:{client_nonce}:auth:{_md5(f'{method}:{_URI}'.encode())}".encode())


def _hashed(text: str) -> bytes:
    """In ISO 8859-1 if that has all of its characters."""
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()  # the choice of the protocol


def _quoted(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)


def _fields(message: bytes) -> dict[str, str]:
    found = {}
    for match in _FIELD.finditer(message):
        value = match[3] if match[2] is None else re.sub(rb"\\(.)", rb"\1", match[2])
        found[match[1].decode().lower()] = value.decode("utf-8", "replace")
    return found
