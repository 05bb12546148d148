"""The private key and the trusted certificates of a listener, or for ZooKeeper, as PEM, from wherever its keys say.

A store in a file is PEM or PKCS #12, as its first bytes tell; Java writes PKCS #12 also where it says JKS.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from seglog.broker.security.listener_keys import TlsKeys
from seglog.client.security import pem
from seglog.client.security.security_config import not_pem
from seglog.core.errors import InvalidConfigError

_PRIVATE: Final = "PRIVATE KEY-----"
_ENCRYPTED: Final = "ENCRYPTED"
"""In the label of a key, or in the header of one of the old kind."""


class KeyMaterial(NamedTuple):
    """PEM texts. ``name`` is the key of the configuration that they came from, for errors; ``password`` is that of the
    private key, and ``password_name`` its key."""

    name: str
    chain: str
    key: str
    password: str | None
    password_name: str


class Trust(NamedTuple):
    """``certificates`` are PEM; ``name`` as in `KeyMaterial`."""

    name: str
    certificates: str


def key_material(keys: TlsKeys) -> KeyMaterial | None:
    """None if no key is configured. `InvalidConfigError` if one is and cannot be used."""
    location, key = keys.text("ssl.keystore.location"), keys.text("ssl.keystore.key")
    password_name = keys.name("ssl.key.password")
    if location and key:
        raise InvalidConfigError(f"{keys.name('ssl.keystore.location')} and ssl.keystore.key exclude each other")
    if key:
        chain = keys.text("ssl.keystore.certificate.chain")
        if not chain:
            raise InvalidConfigError(f"{keys.name('ssl.keystore.key')} needs ssl.keystore.certificate.chain")
        password = keys.text("ssl.key.password") or None
        return KeyMaterial(keys.name("ssl.keystore.key"), chain, key, password, password_name)
    if not location:
        return None
    name = f"{keys.name('ssl.keystore.location')}: {location}"
    data = keys.read("ssl.keystore.location", location)
    store_password = keys.text("ssl.keystore.password")
    found = pem.store_type(data)
    if found == "PKCS12":
        from seglog.broker.security.pkcs12 import read_pkcs12

        try:
            store = read_pkcs12(data, store_password)
        except ValueError as error:
            raise InvalidConfigError(f"{name}: {error}; its password is {keys.name('ssl.keystore.password')}") from None
        if not store.key:
            raise InvalidConfigError(f"{name}: it has no private key")
        if not store_password:
            _check_mode(keys, location, name)
        return KeyMaterial(name, store.chain, store.key, None, password_name)
    if found is not None:
        raise not_pem("keystore", found, location)
    if store_password:
        raise InvalidConfigError(
            f"{keys.name('ssl.keystore.password')} is not allowed: PEM has none. The password of an encrypted key is "
            f"{password_name}"
        )
    text = data.decode("utf-8", "replace")
    if _PRIVATE in text and _ENCRYPTED not in text:
        _check_mode(keys, location, name)
    return KeyMaterial(name, text, text, keys.text("ssl.key.password") or None, password_name)


def trust_of(keys: TlsKeys) -> Trust | None:
    """None if no trusted certificates are configured. `InvalidConfigError` if they cannot be used."""
    location, inline = keys.text("ssl.truststore.location"), keys.text("ssl.truststore.certificates")
    if location and inline:
        raise InvalidConfigError(
            f"{keys.name('ssl.truststore.location')} and ssl.truststore.certificates exclude each other"
        )
    if inline:
        return Trust(keys.name("ssl.truststore.certificates"), inline)
    if not location:
        return None
    name = f"{keys.name('ssl.truststore.location')}: {location}"
    data = keys.read("ssl.truststore.location", location)
    found = pem.store_type(data)
    if found == "PKCS12":
        from seglog.broker.security.pkcs12 import read_pkcs12

        try:
            store = read_pkcs12(data, keys.text("ssl.truststore.password"))
        except ValueError as error:
            raise InvalidConfigError(
                f"{name}: {error}; its password is {keys.name('ssl.truststore.password')}"
            ) from None
        return Trust(name, store.chain or store.others)
    if found is not None:
        raise not_pem("truststore", found, location)
    return Trust(name, data.decode("utf-8", "replace"))


def _check_mode(keys: TlsKeys, path: str, name: str) -> None:
    if keys.is_public(path):
        raise InvalidConfigError(
            f"{name}: all users of this machine can read this private key, which is not encrypted: chmod o-r {path}"
        )
