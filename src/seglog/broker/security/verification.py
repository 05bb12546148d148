"""The outcome of a mechanism of SASL, as the broker sees it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple


class Verified(NamedTuple):
    """``user`` is who the client is, ``answer`` the last message to it."""

    user: str
    answer: bytes


Exchange = Generator[bytes, bytes, Verified]
"""The broker's side of a mechanism. It yields b"" at first, then its answers; it gets the client's messages, and
returns at the last one. `AuthenticationFailedError` is for the client, ValueError is not: it may tell too much."""
Mechanism = Callable[[], Exchange]
