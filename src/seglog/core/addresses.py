"""Listeners as Kafka writes them: ``PLAINTEXT://127.0.0.1:9092,INTERNAL://[::1]:19092``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple

_ADDRESS: Final = re.compile(r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]*)\]|([^:\[\]/,\s]*)):([0-9]{1,5})")
WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})
"""Hosts that mean all interfaces: a broker can listen there, but clients cannot connect to them."""


class Address(NamedTuple):
    """A listener's name, host and port; port 0 means any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{self.host_port}"

    @property
    def host_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """
    >>> parse_address("PLAINTEXT://[::1]:9092")
    Address(name='PLAINTEXT', host='::1', port=9092)
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not NAME://HOST:PORT")
    port = int(match[4])
    if port > 65535:
        raise ValueError(f"there is no port {port}")
    return Address(match[1].upper(), match[2] or match[3] or "", port)


def parse_host_port(text: str) -> Address:
    """``HOST:PORT`` of a command line: the listener PLAINTEXT, or the one that is named.

    >>> str(parse_host_port("[::1]:9092")), str(parse_host_port(":0"))
    ('PLAINTEXT://[::1]:9092', 'PLAINTEXT://:0')
    """
    if "://" in text:
        return parse_address(text)
    if _ADDRESS.fullmatch(plain := f"PLAINTEXT://{text.strip()}") is None:
        raise ValueError(f"{text!r} is neither HOST:PORT nor NAME://HOST:PORT")
    return parse_address(plain)


class Addresses:
    """The type of keys with listeners. Each name occurs once."""

    type: ClassVar[str] = "list"
    allowed: ClassVar[str] = "NAME://HOST:PORT, several with commas between them, each name once"

    def parse(self, value: object) -> tuple[Address, ...]:
        if isinstance(value, str):
            value = [parse_address(text) for text in value.split(",") if text.strip()]
        if not isinstance(value, Iterable):
            raise TypeError("not a list of listeners")
        found = tuple(value)
        if not all(isinstance(address, Address) for address in found):
            raise TypeError("not a list of listeners")
        if len({address.name for address in found}) < len(found):
            raise ValueError("a name occurs twice")
        return found

    def format(self, value: Any) -> str:
        return ",".join(str(address) for address in value)
