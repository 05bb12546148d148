"""TLS: certificates of clients and of the broker, files that change, and handshakes that do not end."""

from __future__ import annotations

import logging
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificates

from seglog.core.broker_config import STANDARD_AUTHORIZER
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidConfigError
from seglog.net.connection_quotas import MAX_HANDSHAKES_PER_IP
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.security.secured_node import SecuredNode, TlsWire
from tests.cli.run import run_here
from tests.kit.certificates import Authority, Identity
from tests.kit.waiting import wait_until


def serial(address: str, authority: Authority) -> object:
    """Of the broker's certificate, as a new connection sees it."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return (secured.getpeercert() or {})["serialNumber"]


def principals(node: SecuredNode, listener: str) -> set[str]:
    return {one.principal for one in node.connections(listener)}


def test_requests_of_any_size_pass(secured: SecuredNode) -> None:
    """Also those that need more than one record of TLS, and more than one buffer."""
    with TlsWire(secured.at("TLS"), secured.client_context()) as wire:
        for size in (1, 16 << 10, 300 << 10, 900 << 10):
            names = [{"name": "x" * 200} for _ in range(size // 200 + 1)]
            answer = wire.ask(ApiKey.METADATA, topics=names, allow_auto_topic_creation=False)
            assert len(answer.topics) >= 1
        for _ in range(50):
            wire.send(ApiKey.METADATA, topics=None)
        for _ in range(50):
            assert wire.answer(ApiKey.METADATA).topics


def test_the_certificate_of_a_client_names_its_principal(secured: SecuredNode) -> None:
    ann = secured.authority.issue("ann", common_name="ann")
    context = secured.client_context()
    context.load_cert_chain(ann.chain, ann.key)
    with TlsWire(secured.at("MTLS"), context) as wire:
        assert wire.ask(ApiKey.METADATA, topics=None).topics
        assert principals(secured, "MTLS") == {"User:ANN"}
    with TlsWire(secured.at("TLS"), context) as wire:  # which does not ask for a certificate
        assert wire.ask(ApiKey.METADATA, topics=None).topics
        assert principals(secured, "TLS") == {"User:ANONYMOUS"}


@pytest.mark.parametrize("kind", ["none", "expired", "foreign"])
def test_a_client_without_a_good_certificate_is_refused(secured: SecuredNode, tmp_path: Path, kind: str) -> None:
    context = secured.client_context()
    if kind != "none":
        authority = secured.authority if kind == "expired" else Authority(tmp_path)
        identity = authority.issue(kind, days=-1 if kind == "expired" else 2)
        context.load_cert_chain(identity.chain, identity.key)
    with (  # in TLS 1.3 it is told after the handshake
        pytest.raises((ConnectionError, ssl.SSLError)),
        TlsWire(secured.at("MTLS"), context) as wire,
    ):
        wire.ask(ApiKey.API_VERSIONS, 0)


def test_a_client_that_speaks_no_tls_is_named(secured: SecuredNode, caplog: pytest.LogCaptureFixture) -> None:

    def is_named() -> bool:
        secured.node.quotas.refusals._said.clear()  # a client of another test may have used up this minute's line
        with Wire(secured.at("TLS")) as wire:
            wire.send(ApiKey.API_VERSIONS, 0)
            assert wire.is_ended()
        return "this port has TLS" in caplog.text

    with caplog.at_level(logging.INFO, "seglog.net"):
        wait_until(is_named, "the refusal in the log")


# Stores


def as_pkcs12(identity: Identity, password: str) -> Path:
    path = identity.store.with_suffix(".p12")
    (certificate,) = load_pem_x509_certificates(identity.chain.read_bytes())
    key = load_pem_private_key(identity.key.read_bytes(), None)
    encryption = BestAvailableEncryption(password.encode())
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"a", key, certificate, None, encryption))  # type: ignore[arg-type]
    return path


def tls_node(path: Path, **settings: str) -> RunningNode:
    keys = {"listeners": "SSL://127.0.0.1:0", **{name.replace("_", "."): text for name, text in settings.items()}}
    return RunningNode(path / "log", keys)


def test_a_pkcs12_store_serves_as_one_of_pem(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    path = as_pkcs12(authority.issue("broker", "IP:127.0.0.1"), "store-secret")
    with tls_node(tmp_path, ssl_keystore_location=str(path), ssl_keystore_password="store-secret") as node:
        assert serial(node.bootstrap, authority)


def test_keys_may_be_in_the_configuration(tmp_path: Path) -> None:
    """And the password of an encrypted one in a file."""
    authority = Authority(tmp_path)
    broker = authority.issue("broker", "IP:127.0.0.1", password="key-secret")
    (tmp_path / "secrets.properties").write_text("key=key-secret\n")
    settings = {
        "ssl.keystore.key": broker.key.read_text(),
        "ssl.keystore.certificate.chain": broker.chain.read_text(),
        "ssl.key.password": f"${{file:{tmp_path}/secrets.properties:key}}",
    }
    with RunningNode(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **settings}) as node:
        assert serial(node.bootstrap, authority)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, "needs a private key: set ssl.keystore.location"),
        ({"ssl.keystore.location": "{dir}/none.pem"}, "none.pem: No such file"),
        ({"ssl.keystore.location": "{dir}/broker.crt"}, "0 private keys"),
        ({"ssl.keystore.location": "{dir}/broker.p12"}, "password is ssl.keystore.password"),
        ({"ssl.keystore.location": "{dir}/open.pem"}, "chmod o-r .*open.pem"),
        ({"ssl.keystore.location": "{dir}/store.jks"}, "keytool"),
        ({"ssl.keystore.location": "{dir}/broker.pem", "ssl.client.auth": "required"}, "needs ssl.truststore.location"),
        (
            {
                "ssl.keystore.location": "{dir}/broker.pem",
                "ssl.client.auth": "required",
                "ssl.truststore.location": "{dir}/broker.key",
            },
            "ssl.truststore.location.*no certificate",
        ),
        ({"ssl.keystore.location": "{dir}/broker.pem", "ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2, TLSv1.3"),
        ({"ssl.keystore.location": "{dir}/broker.pem", "ssl.cipher.suites": "TLS_NULL"}, "ssl.cipher.suites"),
        ({"ssl.keystore.location": "{dir}/broker.pem", "ssl.principal.mapping.rules": "RULE"}, "DEFAULT or RULE"),
        ({"ssl.keystore.location": "{dir}/broker.pem", "ssl.keystore.password": "x"}, "ssl.key.password"),
    ],
)
def test_a_store_that_cannot_be_used_is_named(tmp_path: Path, change: dict[str, str], complaint: str) -> None:
    broker = Authority(tmp_path).issue("broker", "IP:127.0.0.1")
    as_pkcs12(broker, "store-secret")
    (tmp_path / "open.pem").write_text(broker.store.read_text())
    (tmp_path / "open.pem").chmod(0o644)
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed1234")
    settings = {name: text.format(dir=tmp_path) for name, text in change.items()}
    with pytest.raises(InvalidConfigError, match=complaint):
        RunningNode(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **settings}).start()


def test_a_version_that_is_not_enabled_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    broker = authority.issue("broker", "IP:127.0.0.1")
    with tls_node(tmp_path, ssl_keystore_location=str(broker.store), ssl_enabled_protocols="TLSv1.3") as node:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsWire(node.bootstrap, context)


def test_new_files_serve_new_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that cannot be used do not, and old connections stay."""
    authority = Authority(tmp_path)
    store = authority.issue("broker", "IP:127.0.0.1").store
    with tls_node(tmp_path, ssl_keystore_location=str(store)) as node:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        with TlsWire(node.bootstrap, context) as old:
            first = serial(node.bootstrap, authority)
            renewed = authority.issue("renewed", "IP:127.0.0.1").store
            store.write_text("half of a file")
            assert serial(node.bootstrap, authority) == first
            assert "SSL keeps its old certificates" in caplog.text
            renewed.replace(store)
            assert serial(node.bootstrap, authority) != first
            assert old.ask(ApiKey.METADATA, topics=None).brokers


def test_a_store_may_be_a_link(tmp_path: Path) -> None:
    """As Kubernetes mounts secrets: a link to a directory that is replaced."""
    authority = Authority(tmp_path)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        authority.issue(f"{name}-broker", "IP:127.0.0.1").store.rename(tmp_path / name / "tls.pem")
    (tmp_path / "data").symlink_to("old")
    (tmp_path / "tls.pem").symlink_to("data/tls.pem")
    with tls_node(tmp_path, ssl_keystore_location=str(tmp_path / "tls.pem")) as node:
        first = serial(node.bootstrap, authority)
        (tmp_path / "next").symlink_to("new")
        (tmp_path / "next").rename(tmp_path / "data")
        assert serial(node.bootstrap, authority) != first


def test_a_listener_changes_its_store_while_it_runs(secured: SecuredNode, tmp_path: Path) -> None:
    """By IncrementalAlterConfigs, for one broker; a store that cannot be used is refused."""
    other = secured.authority.issue("other", "IP:127.0.0.1").store
    before = serial(secured.at("TLS"), secured.authority)
    key = "listener.name.tls.ssl.keystore.location"

    def alter(name: str, value: str, node: str = "1") -> tuple[int, str]:
        configs = [{"name": name, "config_operation": 0, "value": value}]
        resource = {"resource_type": 4, "resource_name": node, "configs": configs}
        with Wire(secured.at("PLAINTEXT")) as wire:
            (answer,) = wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource]).responses
        return answer.error_code, answer.error_message or ""

    assert alter(key, str(tmp_path / "none"))[0] == 42
    assert alter(key, str(other), "")[0] == 42
    assert alter("ssl.keystore.location", str(other))[0] == 42
    assert serial(secured.at("TLS"), secured.authority) == before
    assert alter(key, str(other)) == (0, "")
    assert serial(secured.at("TLS"), secured.authority) != before


# Handshakes that do not end


def test_unfinished_handshakes_do_not_keep_others_out(secured: SecuredNode) -> None:
    """An address that begins many is closed out after a number; one place less is enough to be served again."""
    host, _, port = secured.at("TLS").rpartition(":")
    quotas = secured.node.quotas
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(MAX_HANDSHAKES_PER_IP)]
        for one in slow:
            one.sendall(b"\x16\x03\x01\x02\x00")  # the head of a record
        wait_until(lambda: quotas.handshakes_of("127.0.0.1") == len(slow), "the handshakes to begin")
        with Wire(f"{host}:{port}") as wire:
            assert wire.is_ended()
        with Wire(secured.at("PLAINTEXT")) as wire:  # the other listeners go on
            assert wire.ask(ApiKey.METADATA, topics=None).topics
        slow[0].close()
        wait_until(lambda: quotas.handshakes_of("127.0.0.1") < len(slow), "one of them to end")
        with TlsWire(f"{host}:{port}", secured.client_context()) as wire:
            assert wire.ask(ApiKey.METADATA, topics=None).topics
    wait_until(lambda: not quotas.handshakes_of("127.0.0.1"), "all of them to end")


def test_the_rights_of_a_revoked_certificate_end_on_open_connections(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The broker knows nothing of revocations: the command is that of docs/security.md."""
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    seglog = run_here(capfdbinary)
    with SecuredNode(tmp_path, settings) as node:
        plain = node.at("PLAINTEXT")
        ann = node.authority.issue("ann", common_name="ann")
        context = node.client_context()
        context.load_cert_chain(ann.chain, ann.key)
        with Wire(plain) as admin:
            admin.create_topic("t")
        allowed = seglog(
            "acls", "add", "--consumer", "--topic", "*", "--group", "*", "--allow-principal", "User:ANN", "-b", plain
        )
        assert allowed.code == 0, allowed.err

        def topic(wire: Wire) -> int:
            (found,) = wire.ask(ApiKey.METADATA, topics=[{"name": "t"}], allow_auto_topic_creation=False).topics
            return int(found.error_code)

        with TlsWire(node.at("MTLS"), context) as wire:
            assert topic(wire) == 0
            everything = ("--topic", "*", "--group", "*", "--transactional-id", "*", "--cluster", "--operation", "All")
            denied = seglog("acls", "add", *everything, "--deny-principal", "User:ANN", "-b", plain)
            assert denied.code == 0, denied.err
            assert topic(wire) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
