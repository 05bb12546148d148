"""Cipher suites by their names in ``ssl.cipher.suites`` (RFC 5246, 5289, 7905, 8446), which are Java's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_EXCHANGES: Final = ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
_CIPHERS: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}
TLS_1_3_SUITES: Final = tuple(f"TLS_{cipher}" for cipher in _CIPHERS)
TLS_1_2_SUITES: Final[Mapping[str, str]] = {
    f"TLS_{exchange}_WITH_{cipher}": f"{exchange.replace('_', '-')}-{name}"
    for exchange in _EXCHANGES
    for cipher, name in _CIPHERS.items()
} | {
    f"TLS_ECDHE_{key}_WITH_AES_{bits}_CBC_SHA{digest}": f"ECDHE-{key}-AES{bits}-SHA{digest}"
    for key in ("ECDSA", "RSA")
    for bits, digest in (("256", "384"), ("128", "256"), ("256", ""), ("128", ""))
}
"""The suites with forward secrecy, with their names in OpenSSL."""
SUITES: Final = (*TLS_1_3_SUITES, *TLS_1_2_SUITES)
