"""A certificate authority for tests and demonstrations, by `cryptography`. Its keys are in files of mode 0600."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog.core.clock import Clock, SystemClock
from seglog.core.extras import require
from seglog.core.fs import write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, DNSName, IPAddress

_DAYS: Final = 30
_EARLIER: Final = timedelta(hours=1)
"""Clocks differ."""


class DemoCertificate(NamedTuple):
    """Paths of PEM files. ``store`` has the key and the certificate, as ``ssl.keystore.location`` takes them."""

    store: str
    key: str
    certificate: str


class DemoAuthority:
    """``certificate`` is the path of its own certificate, as ``ssl.truststore.location`` takes it."""

    def __init__(self, directory: str, name: str = "ca", *, clock: Clock | None = None) -> None:
        """The directory must be there, without such files. `MissingExtraError` without `cryptography`."""
        require("cryptography", "tls", purpose="making certificates")
        from cryptography.hazmat.primitives.asymmetric import ec

        self._directory = directory
        self._now = datetime.fromtimestamp((SystemClock() if clock is None else clock).now_ms() / 1000, UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(name, self._key, [], _DAYS)
        self.certificate = os.path.join(directory, f"{name}.pem")
        write_private(self.certificate, self._pem(self._certificate))

    def issue(self, name: str, hosts: Sequence[str] = (), *, is_expired: bool = False) -> DemoCertificate:
        """A key and a certificate for a broker's ``hosts``, or for the client ``name``."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._pem(self._signed(name, key, hosts, 0 if is_expired else _DAYS))
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        made = DemoCertificate(*(os.path.join(self._directory, f"{name}.{kind}") for kind in ("pem", "key", "crt")))
        for path, data in zip(made, (text + certificate, text, certificate), strict=True):
            write_private(path, data)
        return made

    def _signed(self, name: str, key: EllipticCurvePrivateKey, hosts: Sequence[str], days: int) -> Certificate:
        """A certificate of ``days``; of the authority itself if the key is its own."""
        from cryptography import x509
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.x509.oid import NameOID

        is_own = key is self._key
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if is_own else self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - 2 * _EARLIER)
            .not_valid_after(self._now + timedelta(days=days) - _EARLIER)
            .add_extension(x509.BasicConstraints(ca=is_own, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if is_own:
            usage = x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            )
            builder = builder.add_extension(usage, critical=True)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(one) for one in hosts]), critical=False
            )
        return builder.sign(self._key, SHA256())

    def _pem(self, certificate: Certificate) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return certificate.public_bytes(Encoding.PEM)


def _alternative(host: str) -> DNSName | IPAddress:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
