"""The outcome of a mechanism of SASL, as the broker sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import NamedTuple


class TokenPrincipal(str):
    """The principal of a client that has authenticated by a delegation token (``tokenAuthenticated`` in Kafka)."""

    __slots__ = ()


class Verified(NamedTuple):
    """``user`` is who the client is, ``answer`` the last message to it. ``expires_ms`` is when its credentials end, in
    ms of the wall clock; ``by_token``: they are a delegation token."""

    user: str
    answer: bytes
    expires_ms: int | None = None
    by_token: bool = False


Exchange = Generator[bytes | Awaitable[None], bytes, Verified]
"""The broker's side of a mechanism. It yields b"" at first, then its answers; it gets the client's messages, and
returns at the last one. If it must wait, it yields what is to be awaited, and then gets b"".
`AuthenticationFailedError` is for the client, ValueError is not: it may tell too much."""
Mechanism = Callable[[], Exchange]
