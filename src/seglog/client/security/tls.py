"""TLS to a broker: the context from ``ssl.*`` options, the handshake, and the meaning of its errors.

Trust is Java's: a certificate in the trust store is trusted whether it is a root or not
(``DefaultSslEngineFactory.java``). Key material given as text goes to OpenSSL through a file without a name.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Collection
from enum import Enum
from typing import Final

from seglog.client.bootstrap import HostPort
from seglog.client.security import pem
from seglog.client.security.references import Secrets
from seglog.client.security.security_config import (
    TLS_1_2,
    TLS_1_2_SUITES,
    TLS_1_3,
    TLS_1_3_SUITES,
    SecurityConfig,
    not_pem,
)
from seglog.core.errors import (
    AuthenticationFailedError,
    BrokerUnavailableError,
    InvalidConfigError,
    RequestFailedError,
)
from seglog.core.fs import unnamed_file

_MISMATCHES: Final = frozenset({62, 64})
"""``X509_V_ERR_HOSTNAME_MISMATCH``, ``X509_V_ERR_IP_ADDRESS_MISMATCH``."""
_TIMES: Final = frozenset({9, 10})
"""A certificate that is not valid yet, or no longer."""
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
_TOO_WEAK: Final = frozenset({"CA_MD_TOO_WEAK", "CA_KEY_TOO_SMALL", "EE_KEY_TOO_SMALL"})
"""Reasons of OpenSSL for its security level; Java has other limits, so a store that Kafka takes may have such ones."""
_CLIENT_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")
"""Parts of the names of alerts about a client's certificate."""


def secure(plain: socket.socket, address: HostPort, config: SecurityConfig, secrets: Secrets) -> ssl.SSLSocket:
    """Shake hands over a new connection, which is then closed with the returned one.

    Raises `InvalidConfigError` if the stores cannot be used, and what `explain` returns.
    """
    context = tls_context(config, secrets)
    try:
        secured = context.wrap_socket(plain, server_hostname=address.host)
    except OSError as error:
        raise explain(error, str(address), config) from error
    if config.ssl_cipher_suites and (used := secured.cipher()) is not None:
        names = {TLS_1_2_SUITES.get(name, name) for name in config.ssl_cipher_suites}
        if used[0] not in names:  # OpenSSL lets nobody choose among those of TLS 1.3
            secured.close()
            raise RequestFailedError(f"{address}: TLS: the broker chose {used[0]}, which ssl.cipher.suites excludes")
    return secured


def tls_context(config: SecurityConfig, secrets: Secrets) -> ssl.SSLContext:
    """Read stores and passwords again. `InvalidConfigError` names the option and file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(config.ssl_endpoint_identification_algorithm)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    set_versions(context, config.ssl_enabled_protocols, config.ssl_protocol, config.ssl_cipher_suites)
    _trust(context, config, secrets)
    _identify(context, config, secrets)
    return context


class TlsFault(Enum):
    """Why a handshake failed: the server's certificate has no CA of ours, not its name, or not the time; the server
    refuses or lacks ours; it does not speak TLS; nothing in common; something else."""

    UNTRUSTED = "untrusted"
    MISNAMED = "misnamed"
    EXPIRED = "expired"
    CLIENT = "client"
    NO_TLS = "no TLS"
    PARAMETERS = "parameters"
    OTHER = "other"


def fault_of(error: OSError) -> tuple[TlsFault, str]:
    """The fault, and the words of OpenSSL for it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        fault = TlsFault.MISNAMED if error.verify_code in _MISMATCHES else TlsFault.UNTRUSTED
        return TlsFault.EXPIRED if error.verify_code in _TIMES else fault, error.verify_message.rstrip(".")
    reason = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
    fault = TlsFault.OTHER
    if reason in _NO_TLS:
        fault = TlsFault.NO_TLS
    elif "ALERT" in reason and any(part in reason for part in _CLIENT_ALERTS):
        fault = TlsFault.CLIENT
    elif "ALERT" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        fault = TlsFault.PARAMETERS
    return fault, _words(reason) or error.strerror or str(error) or type(error).__name__


def explain(error: OSError, name: str, config: SecurityConfig) -> RequestFailedError:
    """The error of a handshake, or of the first bytes after it: then a broker refuses a certificate in TLS 1.3."""
    fault, words = fault_of(error)
    has_key = config.ssl_keystore_location or config.ssl_keystore_key
    match fault:
        case TlsFault.UNTRUSTED | TlsFault.MISNAMED | TlsFault.EXPIRED:
            hint = {
                TlsFault.UNTRUSTED: "the CA in ssl.truststore.location must have signed it",
                TlsFault.MISNAMED: "ssl.endpoint.identification.algorithm requires the host name in the certificate",
                TlsFault.EXPIRED: "it, or the certificate of its CA, must be renewed",
            }[fault]
            return AuthenticationFailedError(f"{name}: TLS: its certificate is refused: {words}; {hint}")
        case TlsFault.NO_TLS:
            return RequestFailedError(f"{name}: the listener does not speak TLS: check security.protocol")
        case TlsFault.CLIENT:
            hint = "refuses the client's certificate" if has_key else "asks for a certificate of the client"
            return AuthenticationFailedError(f"{name}: TLS: the broker {hint} ({words}); check ssl.keystore.*")
        case TlsFault.PARAMETERS:
            # With TLS 1.2, OpenSSL's servers send this if the client has no certificate.
            hint = "" if has_key else ", or the broker asks for a certificate of the client; check ssl.keystore.*"
            return RequestFailedError(
                f"{name}: TLS: no common version or cipher suite ({words}); check ssl.enabled.protocols and "
                f"ssl.cipher.suites{hint}"
            )
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        words += "; if its listener does not speak TLS, change security.protocol"
    return BrokerUnavailableError(f"{name}: TLS: {words}")


def _words(reason: str) -> str:
    """OpenSSL's name of a reason without what is the same in all.

    >>> _words("TLSV13_ALERT_CERTIFICATE_REQUIRED")
    'certificate required'
    """
    return reason.rpartition("ALERT_")[2].replace("_", " ").lower()


def set_versions(context: ssl.SSLContext, enabled: Collection[str], newest: str, suites: Collection[str]) -> None:
    """``enabled`` is ``ssl.enabled.protocols``, ``newest`` ``ssl.protocol``, ``suites`` ``ssl.cipher.suites``; none:
    OpenSSL's defaults. `InvalidConfigError` if they leave nothing."""
    versions = set(enabled)
    if newest == TLS_1_2:
        versions.discard(TLS_1_3)
    if suites:
        versions -= set() if set(suites).intersection(TLS_1_3_SUITES) else {TLS_1_3}
        old = [TLS_1_2_SUITES[name] for name in TLS_1_2_SUITES if name in suites]
        if old:
            context.set_ciphers(":".join(old))
        else:
            versions.discard(TLS_1_2)
    if not versions:
        raise InvalidConfigError("ssl.enabled.protocols, ssl.protocol and ssl.cipher.suites leave no version of TLS")
    found = [{TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}[version] for version in versions]
    context.minimum_version, context.maximum_version = min(found), max(found)


def _trust(context: ssl.SSLContext, config: SecurityConfig, secrets: Secrets) -> None:
    if config.ssl_truststore_location is not None:
        name = "ssl.truststore.location"
        path = secrets.resolve(name, config.ssl_truststore_location)
        text = _store(name, "truststore", path, secrets)
        name = f"{name}: {path}"
    elif config.ssl_truststore_certificates is not None:
        name = "ssl.truststore.certificates"
        text = secrets.resolve(name, config.ssl_truststore_certificates)
    else:
        context.load_default_certs()
        return
    trust(context, name, text)


def trust(context: ssl.SSLContext, name: str, text: str) -> None:
    """Trust the certificates in a PEM text. `InvalidConfigError` names the option ``name``."""
    try:
        context.load_verify_locations(cadata=pem.certificates(text))
    except (ValueError, ssl.SSLError) as error:
        raise InvalidConfigError(f"{name}: {_why(error)}") from None


def _identify(context: ssl.SSLContext, config: SecurityConfig, secrets: Secrets) -> None:
    if config.ssl_keystore_location is not None:
        name = "ssl.keystore.location"
        path = secrets.resolve(name, config.ssl_keystore_location)
        chain = key = _store(name, "keystore", path, secrets)
        name = f"{name}: {path}"
    elif config.ssl_keystore_key is not None and config.ssl_keystore_certificate_chain is not None:
        name = "ssl.keystore.certificate.chain and ssl.keystore.key"
        chain = secrets.resolve("ssl.keystore.certificate.chain", config.ssl_keystore_certificate_chain)
        key = secrets.resolve("ssl.keystore.key", config.ssl_keystore_key)
    else:
        return
    given = config.ssl_key_password
    identify(context, name, chain, key, None if given is None else secrets.resolve("ssl.key.password", given))


def identify(
    context: ssl.SSLContext,
    name: str,
    chain: str,
    key: str,
    password: str | None,
    password_name: str = "ssl.key.password",
) -> None:
    """Use the certificates of one PEM text and the private key of another. `InvalidConfigError` names the option
    ``name``."""

    def ask() -> str:
        if password is None:  # OpenSSL would ask on the terminal
            raise InvalidConfigError(f"{name}: the private key is encrypted: set {password_name}")
        return password

    try:
        with (
            unnamed_file(pem.certificates(chain).encode()) as chain_path,
            unnamed_file(pem.private_key(key).encode()) as key_path,
        ):
            context.load_cert_chain(chain_path, key_path, password=ask)
    except (ValueError, ssl.SSLError) as error:
        if isinstance(error, InvalidConfigError):
            raise
        raise InvalidConfigError(f"{name}: {_why(error, password_name)}") from None


def _store(name: str, kind: str, path: str, secrets: Secrets) -> str:
    data = secrets.read(name, path)
    found = pem.store_type(data)
    if found is not None:
        raise not_pem(kind, found, path)
    return data.decode("utf-8", "replace")


def _why(error: ValueError | ssl.SSLError, password_name: str = "ssl.key.password") -> str:
    if not isinstance(error, ssl.SSLError):
        return str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the first certificate"
    if error.reason in _TOO_WEAK:
        return (
            f"OpenSSL refuses a certificate in it ({error.reason}): its key is too short, or its signature uses SHA-1 "
            "or MD5; issue it again, with RSA of 2048 bits or more, or EC, and SHA-256"
        )
    return f"OpenSSL cannot read it; if the private key is encrypted, {password_name} may be wrong"
