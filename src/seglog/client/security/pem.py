"""Blocks of PEM (RFC 7468) in a text: certificates and private keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap
from typing import Final

_BLOCK: Final = re.compile(r"-----BEGIN (?P<label>[A-Z0-9 ]+)-----\s(?P<body>.*?)-----END (?P=label)-----", re.DOTALL)
_CERTIFICATE: Final = "CERTIFICATE"
_KEY: Final = "PRIVATE KEY"
_WIDTH: Final = 64
JKS: Final = b"\xfe\xed\xfe\xed"
DER: Final = b"\x30"
"""The first bytes of a Java key store, and of a PKCS #12 one."""


def certificates(text: str) -> str:
    """The certificates alone, in their order. ValueError if there is none."""
    found = [block for label, block in _blocks(text) if label == _CERTIFICATE]
    if not found:
        raise ValueError("it has no certificate as PEM (-----BEGIN CERTIFICATE-----)")
    return "".join(found)


def private_key(text: str) -> str:
    """The private key alone. ValueError if there is none, or several."""
    found = [block for label, block in _blocks(text) if label.endswith(_KEY)]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} private keys as PEM (-----BEGIN PRIVATE KEY-----): it must have one")
    return found[0]


def store_type(data: bytes) -> str | None:
    """The type of a store that is not PEM, by its first bytes."""
    if data.startswith(JKS):
        return "JKS"
    return "PKCS12" if data.startswith(DER) else None


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Labels and blocks. A body may be all on one line, as in a properties file; OpenSSL needs short lines."""
    for found in _BLOCK.finditer(text):
        label, body = found["label"], found["body"]
        # An encrypted key of the old kind has headers, which are lines.
        lines = body.strip() if ":" in body else "\n".join(wrap("".join(body.split()), _WIDTH))
        yield label, f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
