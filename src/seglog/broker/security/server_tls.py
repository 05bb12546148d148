"""TLS contexts of listeners and of connections to others (``SslFactory.java``), renewed when their files change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Final

from seglog.broker.security.key_stores import key_material, trust_of
from seglog.broker.security.listener_keys import ListenerKeys, TlsKeys
from seglog.client.security.security_config import SUITES, TLS_1_2, TLS_1_3
from seglog.client.security.tls import identify, set_versions, trust
from seglog.core.errors import InvalidConfigError, SeglogError

_log: Final = logging.getLogger("seglog.security")
_CLIENTS: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_FILES: Final = ("ssl.keystore.location", "ssl.truststore.location")


class RenewedContext:
    """`context` is for the next handshake. It is made again after a file of a store has changed; if the new files
    cannot be used, the old context stays."""

    def __init__(self, keys: ListenerKeys, make: Callable[[ListenerKeys], ssl.SSLContext]) -> None:
        """`InvalidConfigError` if the files cannot be used."""
        self._keys = keys
        self._make = make
        self._state = self._files()
        self._context = make(keys)

    def context(self) -> ssl.SSLContext:
        state = self._files()
        if state != self._state:
            self._state = state
            try:
                self._context = self._make(self._keys)
            except SeglogError as error:
                _log.error("Listener %s keeps its old certificates: %s", self._keys.listener, error)
            else:
                _log.warning("Listener %s uses new certificates", self._keys.listener)
        return self._context

    def _files(self) -> list[tuple[str, int, int] | None]:
        return [self._keys.file_state(path) for name in _FILES if (path := self._keys.text(name))]


def server_context(keys: ListenerKeys) -> ssl.SSLContext:
    """`InvalidConfigError` names the key and the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    set_parameters(context, keys)
    material = key_material(keys)
    if material is None:
        raise InvalidConfigError(
            f"listener {keys.listener}: {keys.protocol} needs a private key: set ssl.keystore.location, or "
            "ssl.keystore.key and ssl.keystore.certificate.chain"
        )
    identify(context, *material)
    mode = _CLIENTS[client_auth(keys)]
    if mode is not ssl.CERT_NONE:
        trusted = trust_of(keys)
        if trusted is None:
            raise InvalidConfigError(
                f"{keys.name('ssl.client.auth')}={client_auth(keys)} needs ssl.truststore.location or "
                "ssl.truststore.certificates: the CAs that sign clients' certificates"
            )
        trust(context, *trusted)
        context.verify_mode = mode
    return context


def client_context(keys: TlsKeys) -> ssl.SSLContext:
    """For connections to the same listener of other brokers, or to ZooKeeper. `InvalidConfigError` names the key and
    the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    name = "ssl.endpoint.identification.algorithm"
    algorithm = keys.text(name).lower()
    if algorithm not in ("https", ""):
        raise InvalidConfigError(f"{keys.name(name)}={algorithm!r} is not allowed: https or nothing")
    context.check_hostname = algorithm == "https"
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    set_parameters(context, keys)
    trusted = trust_of(keys)
    if trusted is None:
        context.load_default_certs()
    else:
        trust(context, *trusted)
    material = key_material(keys)
    if material is not None:
        identify(context, *material)
    return context


def client_auth(keys: ListenerKeys) -> str:
    """``ssl.client.auth``. A listener with SASL takes only its own value, not the broker's (KIP-684)."""
    name = "ssl.client.auth"
    return "none" if keys.uses_sasl and keys.name(name) == name else keys.text(name)


def set_parameters(context: ssl.SSLContext, keys: TlsKeys) -> None:
    """Versions and cipher suites."""
    versions, suites = keys.items("ssl.enabled.protocols"), keys.items("ssl.cipher.suites")
    for name, found, known in (
        ("ssl.enabled.protocols", versions, (TLS_1_2, TLS_1_3)),
        ("ssl.cipher.suites", suites, SUITES),
    ):
        if not set(found) <= set(known):
            raise InvalidConfigError(f"{keys.name(name)}={','.join(found)!r} is not allowed: {', '.join(known)}")
    set_versions(context, versions, keys.text("ssl.protocol"), suites)
