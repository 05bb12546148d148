"""A certificate authority for one test, by the `openssl` command: keys and certificates as PEM files."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

_EC: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
_SECONDS: Final = 60


class Identity(NamedTuple):
    """``store`` has the key and the chain, as ``ssl.keystore.location`` takes them."""

    key: Path
    chain: Path
    store: Path


class Authority:
    """``certificate`` is its own, as ``ssl.truststore.location`` takes it."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = directory / f"{name}.key"
        self.certificate = directory / f"{name}.pem"
        subject = ("-subj", f"/CN={name}", "-days", "2")
        _openssl("req", "-x509", *_EC, "-nodes", "-keyout", self._key, "-out", self.certificate, *subject)

    def issue(
        self,
        name: str,
        *alternatives: str,
        days: int = 2,
        password: str | None = None,
        common_name: str | None = None,
        algorithm: Sequence[str] = _EC,
        digest: str = "sha256",
    ) -> Identity:
        """A key and a certificate for ``alternatives`` such as ``DNS:localhost``. ``days`` of -1: it has expired. The
        key is encrypted with the ``password``; ``algorithm`` has options of ``openssl req`` that say of which kind it
        is."""
        key, request, chain, extensions, store = (
            self._directory / f"{name}.{suffix}" for suffix in ("key", "csr", "crt", "ext", "pem")
        )
        protect = ("-nodes",) if password is None else ("-passout", f"pass:{password}")
        _openssl("req", *algorithm, *protect, "-keyout", key, "-out", request, "-subj", f"/CN={common_name or name}")
        extensions.write_text(f"subjectAltName={','.join(alternatives)}\n" if alternatives else "")
        signed = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-extfile", extensions, f"-{digest}")
        _openssl("x509", "-req", "-in", request, "-out", chain, "-days", str(days), *signed)
        store.touch(0o600)
        store.write_text(key.read_text() + chain.read_text())
        return Identity(key, chain, store)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=_SECONDS)
