"""PKCS #12 stores (RFC 7292) as PEM, by `cryptography`."""

from __future__ import annotations

from typing import NamedTuple

from seglog.core.extras import require


class Store(NamedTuple):
    """PEM texts: the private key, "" if the store has none; its chain, the key's own certificate first; and all other
    certificates."""

    key: str
    chain: str
    others: str


def read_pkcs12(data: bytes, password: str) -> Store:
    """ValueError if it cannot be read with this password. `MissingExtraError` without `cryptography`."""
    require("cryptography", "tls", purpose="a PKCS #12 store")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

    try:
        store = pkcs12.load_pkcs12(data, password.encode())
    except ValueError as error:
        raise ValueError(f"it is no PKCS #12 store, or the password is wrong: {error}") from None
    others = "".join(_pem(one.certificate.public_bytes(Encoding.PEM)) for one in store.additional_certs)
    if store.key is None or store.cert is None:
        return Store("", "", others)
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Store(_pem(key), _pem(store.cert.certificate.public_bytes(Encoding.PEM)) + others, others)


def _pem(data: bytes) -> str:
    return data.decode("ascii")
