"""TLS: whose certificates are taken, from which forms of stores, and what the errors say."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from seglog.client.client_config import ClientConfig
from seglog.client.connection import BrokerConnection
from seglog.core.errors import (
    AuthenticationFailedError,
    BrokerUnavailableError,
    InvalidConfigError,
    RequestFailedError,
)
from seglog.protocol.apis import ApiKey
from tests.client.sasl_broker import SaslBroker
from tests.kit.certificates import Authority, Identity


def server(identity: Identity, clients: Authority | None = None) -> ssl.SSLContext:
    """Asks for a certificate of ``clients`` if they are given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.store)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.certificate)
    return context


def connect(broker: SaslBroker, **properties: str | Path) -> None:
    """And ask once."""
    named = {name.replace("_", "."): str(text) for name, text in properties.items()}
    base = {"bootstrap.servers": str(broker.address), "security.protocol": "SSL"}
    config = ClientConfig.from_mapping({**base, **named}, use="read")
    connection = BrokerConnection(config.bootstrap, config)
    assert connection.ask(ApiKey.METADATA, {"topics": ()}).cluster_id == "made"
    connection.close()


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("broker", "IP:127.0.0.1", "DNS:localhost")


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3", "TLSv1.2,TLSv1.3"])
def test_trust_by_file_and_by_text(authority: Authority, identity: Identity, version: str) -> None:
    with SaslBroker(tls=server(identity)) as broker:
        connect(broker, ssl_truststore_location=authority.certificate, ssl_enabled_protocols=version)
        text = authority.certificate.read_text().replace("\n", " ")
        connect(broker, ssl_truststore_type="PEM", ssl_truststore_certificates=text, ssl_enabled_protocols=version)


def test_trust_in_the_certificate_itself(identity: Identity) -> None:
    with SaslBroker(tls=server(identity)) as broker:
        connect(broker, ssl_truststore_location=identity.chain)


def test_certificates_that_are_refused(authority: Authority, stranger: Authority, identity: Identity) -> None:
    trust = {"ssl_truststore_location": authority.certificate}
    with SaslBroker(tls=server(identity)) as broker:
        with pytest.raises(AuthenticationFailedError, match=r"local issuer certificate; the CA in ssl\.truststore"):
            connect(broker, ssl_truststore_location=stranger.certificate)
        with pytest.raises(AuthenticationFailedError, match="local issuer certificate"):
            connect(broker)
    other = authority.issue("elsewhere", "DNS:elsewhere")
    with SaslBroker(tls=server(other)) as broker:
        with pytest.raises(AuthenticationFailedError, match=r"127.0.0.1.*; ssl.endpoint.identification.algorithm"):
            connect(broker, **trust)
        connect(broker, **trust, ssl_endpoint_identification_algorithm="")
        with pytest.raises(AuthenticationFailedError, match="local issuer"):
            connect(broker, ssl_truststore_location=stranger.certificate, ssl_endpoint_identification_algorithm="")
    old = authority.issue("old", "IP:127.0.0.1", days=-1)
    with (
        SaslBroker(tls=server(old)) as broker,
        pytest.raises(
            AuthenticationFailedError, match="has expired; it, or the certificate of its CA, must be renewed"
        ),
    ):
        connect(broker, **trust)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_broker_that_asks_for_a_certificate(
    authority: Authority, stranger: Authority, identity: Identity, version: str, tmp_path: Path
) -> None:
    trust = {"ssl_truststore_location": str(authority.certificate), "ssl_enabled_protocols": version}
    client, other = authority.issue("client"), stranger.issue("client")
    locked = authority.issue("locked", password="geheim")
    (tmp_path / "password").write_text("geheim\n")
    with SaslBroker(tls=server(identity, clients=authority)) as broker:
        connect(broker, **trust, ssl_keystore_location=client.store)
        key, chain = client.key.read_text(), client.chain.read_text()
        connect(broker, **trust, ssl_keystore_key=key, ssl_keystore_certificate_chain=chain)
        connect(broker, **trust, ssl_keystore_key=key.replace("\n", " "), ssl_keystore_certificate_chain=chain)
        password = f"${{directory:{tmp_path}:password}}"
        connect(broker, **trust, ssl_keystore_location=locked.store, ssl_key_password=password)
        with pytest.raises(
            RequestFailedError, match=r"asks for a certificate of the client.*check ssl.keystore"
        ) as raised:
            connect(broker, **trust)
        assert not raised.value.retriable
        with pytest.raises(AuthenticationFailedError, match="refuses the client's certificate"):
            connect(broker, **trust, ssl_keystore_location=other.store)


def test_a_file_is_read_for_each_connection(authority: Authority, identity: Identity, tmp_path: Path) -> None:
    path = tmp_path / "trust.pem"
    with SaslBroker(tls=server(identity)) as broker:
        with pytest.raises(InvalidConfigError, match=f"ssl.truststore.location: {path}: No such file"):
            connect(broker, ssl_truststore_location=path)
        path.write_text("no certificate")
        with pytest.raises(InvalidConfigError, match=f"{path}: it has no certificate as PEM"):
            connect(broker, ssl_truststore_location=path)
        path.write_text(authority.certificate.read_text())
        connect(broker, ssl_truststore_location=path)


def test_stores_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    """All errors come before anything is sent; none has the key or the password."""
    client, locked = authority.issue("user"), authority.issue("locked-user", password="geheim")
    other = authority.issue("third")
    broken = client.chain.read_text().replace("M", "N")
    files = {"jks": b"\xfe\xed\xfe\xed\0\0", "p12": b"\x30\x82\0\0"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for properties, words in (
        ({"ssl_keystore_location": locked.store}, "the private key is encrypted: set ssl.key.password"),
        ({"ssl_keystore_location": locked.store, "ssl_key_password": "secret"}, "ssl.key.password may be wrong"),
        ({"ssl_keystore_location": client.chain}, "it has 0 private keys"),
        ({"ssl_keystore_location": client.key}, "it has no certificate"),
        (
            {"ssl_keystore_key": other.key.read_text(), "ssl_keystore_certificate_chain": client.chain.read_text()},
            "the private key does not belong to the first certificate",
        ),
        ({"ssl_truststore_certificates": broken}, "ssl.truststore.certificates: OpenSSL cannot read it"),
        ({"ssl_truststore_location": tmp_path / "jks"}, "keytool -list -rfc -keystore"),
        ({"ssl_truststore_location": tmp_path / "p12"}, "keytool -list -rfc -keystore"),
        ({"ssl_keystore_location": tmp_path / "jks"}, "keytool -importkeystore"),
        ({"ssl_keystore_location": tmp_path / "p12"}, "openssl pkcs12 -in"),
    ):
        with SaslBroker() as broker, pytest.raises(InvalidConfigError) as raised:
            connect(broker, **properties)
        assert words in str(raised.value), properties
        assert "secret" not in str(raised.value)
        assert broken[100:120] not in str(raised.value)
        assert broker.requests == []


def test_a_weak_certificate_is_not_taken_for_a_wrong_password(authority: Authority) -> None:
    """Java takes these, so a store that Kafka reads may have them."""
    for bits, digest, reason in (("1024", "sha256", "EE_KEY_TOO_SMALL"), ("2048", "sha1", "CA_MD_TOO_WEAK")):
        weak = authority.issue(f"weak-{bits}", algorithm=("-newkey", f"rsa:{bits}"), digest=digest)
        with SaslBroker() as broker, pytest.raises(InvalidConfigError) as raised:
            connect(broker, ssl_keystore_location=weak.store)
        assert f"{weak.store}: OpenSSL refuses a certificate in it ({reason})" in str(raised.value)
        assert "password" not in str(raised.value)
        assert broker.requests == []


def test_cipher_suites(authority: Authority, identity: Identity) -> None:
    trust = {"ssl_truststore_location": authority.certificate}
    with SaslBroker(tls=server(identity)) as broker:
        connect(broker, **trust, ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
        connect(broker, **trust, ssl_cipher_suites="TLS_AES_256_GCM_SHA384")
        with pytest.raises(RequestFailedError, match=r"the broker chose TLS_AES_256_GCM_SHA384, which ssl\.cipher"):
            connect(broker, **trust, ssl_cipher_suites="TLS_AES_128_GCM_SHA256")
        with pytest.raises(RequestFailedError, match="no common version or cipher suite"):
            connect(broker, **trust, ssl_cipher_suites="TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
        with pytest.raises(InvalidConfigError, match="leave no version of TLS"):
            connect(broker, **trust, ssl_cipher_suites="TLS_AES_128_GCM_SHA256", ssl_protocol="TLSv1.2")


def test_a_protocol_that_the_listener_does_not_speak(identity: Identity) -> None:
    with SaslBroker() as broker, pytest.raises(BrokerUnavailableError, match=r"change security\.protocol"):
        connect(broker, ssl_endpoint_identification_algorithm="")
    with (
        SaslBroker(tls=server(identity)) as broker,
        pytest.raises(RequestFailedError, match=r"speaks TLS.*security.protocol"),
    ):
        connect(broker, security_protocol="PLAINTEXT")
