"""TLS, logins and ACLs at a real ZooKeeper; each refusal says which key and file to correct."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from seglog.broker.app import Node
from seglog.cluster.store import MISSING, Change, MetadataStore, StoreAwayError, StoreError, StoreRefusedError
from seglog.cluster.store_address import open_store
from seglog.cluster.zookeeper_connection import _Sockets
from seglog.cluster.zookeeper_security import PLAIN, ZooKeeperSecurity
from seglog.cluster.zookeeper_store import ZooKeeperStore
from seglog.core.broker_config import BrokerConfig
from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidConfigError
from tests.cli.run import run_here
from tests.cluster.proxy import Proxy
from tests.cluster.secured_zookeeper import LOGIN, SecuredZooKeeper, login, security
from tests.kafka.zookeeper import ZooKeeperNode
from tests.kit.certificates import Authority

pytestmark = pytest.mark.interop

_PATIENCE_MS = 60_000
_ALL, _READ = 31, 1
_SECRET = ("config/users/alice", "config/tokens/t1", "config/acls/topic/t", "config/brokers/1")


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 120))


@asynccontextmanager
async def opened(
    servers: str, cluster: str, secured_by: ZooKeeperSecurity, patience_ms: int = _PATIENCE_MS
) -> AsyncIterator[MetadataStore]:
    store = await open_store(
        f"zookeeper://{servers}/{cluster}",
        clock=SystemClock(),
        session_timeout_ms=3000,
        patience_ms=patience_ms,
        security=secured_by,
    )
    try:
        yield store
    finally:
        await store.close()


async def use(store: MetadataStore) -> None:
    """Values larger than a record of TLS, many answers at once, a watch, and a session of its own."""
    changed = asyncio.Event()
    end = store.watch("topics", lambda _: changed.set())
    session = await store.session(20_000, lambda: None)
    await store.commit([Change("brokers/1", b"here", MISSING, session=session)])
    await store.create("topics/large", bytes(900_000))
    names = [f"topics/{number}" for number in range(300)]
    await asyncio.gather(*(store.create(name, name.encode()) for name in names))
    found = await asyncio.gather(*(store.get(name) for name in names))
    assert [one.value.decode() for one in found if one is not None] == names
    large = await store.get("topics/large")
    assert large is not None
    assert large.value == bytes(900_000)
    await changed.wait()
    end()
    await session.close()
    assert await store.get("brokers/1") is None


@pytest.mark.parametrize(
    "how",
    ["certificate", "TLS 1.2", "PKCS #12", "encrypted key", "login", "login of ISO 8859-1", "certificate and login"],
)
def test_a_store_is_used_over_tls_and_with_a_login(how: str, secured: SecuredZooKeeper, tmp_path: Path) -> None:
    servers, keys = secured.tls, secured.keys()
    if how == "login":
        servers, keys = secured.plain, login()
    elif how == "login of ISO 8859-1":
        servers, keys = secured.plain, login("german", "gehäuse")
    elif how == "TLS 1.2":
        keys |= {
            "zookeeper.ssl.protocol": "TLSv1.2",
            "zookeeper.ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        }
    elif how == "encrypted key":
        client = secured.authority.issue("encrypted", password="key-secret")
        keys |= {"zookeeper.ssl.keystore.location": str(client.store), "zookeeper.ssl.keystore.password": "key-secret"}
    elif how == "PKCS #12":
        store = tmp_path / "client.p12"
        command = ("openssl", "pkcs12", "-export", "-inkey", secured.client.key, "-in", secured.client.chain)
        subprocess.run([*command, "-passout", "pass:store", "-out", store], check=True, capture_output=True, timeout=60)
        keys |= {"zookeeper.ssl.keystore.location": str(store), "zookeeper.ssl.keystore.password": "store"}
        keys |= {"zookeeper.ssl.keystore.type": "PKCS12"}
    elif how == "certificate and login":
        keys |= login() | {"zookeeper.set.acl": "true"}

    async def work() -> None:
        async with opened(servers, tmp_path.name, security(keys)) as store:
            await use(store)

    run(work)


REFUSALS = {
    "foreign server": r"localhost:\d+: TLS: the certificate of this server .*its CA must be in "
    r"zookeeper.ssl.truststore.location: .*foreign.pem",
    "foreign": r"TLS: ZooKeeper refuses the certificate in zookeeper.ssl.keystore.location: .*stranger.pem",
    "expired": r"TLS: ZooKeeper refuses the certificate in zookeeper.ssl.keystore.location: .*expired.pem",
    "none": r"TLS: .*(ZooKeeper asks for a certificate: set zookeeper.ssl.keystore.location)",
    "other name": r"127.0.0.1:\d+: TLS: .*zookeeper.ssl.endpoint.identification.algorithm requires the host name in it",
    "wrong password": "the login of kafka by cluster.store.jaas.config is refused",
    "unknown user": "the login of eve by cluster.store.jaas.config is refused",
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_says_what_to_correct(kind: str, secured: SecuredZooKeeper, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "foreign")
    servers, keys = secured.tls, secured.keys()
    if kind == "foreign server":
        keys["zookeeper.ssl.truststore.location"] = str(stranger.certificate)
    elif kind == "foreign":
        keys["zookeeper.ssl.keystore.location"] = str(stranger.issue("stranger").store)
    elif kind == "expired":
        keys["zookeeper.ssl.keystore.location"] = str(secured.authority.issue("expired", days=-1).store)
    elif kind == "none":
        del keys["zookeeper.ssl.keystore.location"]
    elif kind == "other name":
        servers = servers.replace("localhost", "127.0.0.1")
    elif kind == "wrong password":
        servers, keys = secured.plain, login(password="guessed")
    elif kind == "unknown user":
        keys |= login("eve", "guessed")

    async def work() -> None:
        with pytest.raises(StoreRefusedError, match=REFUSALS[kind]):
            async with opened(servers, tmp_path.name, security(keys)):
                pass

    run(work)


def test_a_server_without_logins_is_named(server: ZooKeeperNode, tmp_path: Path) -> None:
    async def work() -> None:
        expected = "cluster.store.jaas.config: .*DIGEST-MD5|the login of kafka by cluster.store.jaas.config is refused"
        with pytest.raises(StoreRefusedError, match=expected):
            async with opened(server.address, tmp_path.name, security(login())):
                pass

    run(work)


def test_an_expired_certificate_of_a_server_is_refused(secured: SecuredZooKeeper, tmp_path: Path) -> None:
    expired = secured.authority.issue("late", "DNS:localhost", days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.store)

    async def work() -> None:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context) as late:
            port = late.sockets[0].getsockname()[1]
            with pytest.raises(StoreRefusedError, match="expired; it, or the certificate of its CA, must be renewed"):
                async with opened(f"localhost:{port}", tmp_path.name, security(secured.keys())):
                    pass

    run(work)


@pytest.mark.parametrize("uses_tls", [True, False])
def test_a_port_may_be_the_other_one(uses_tls: bool, secured: SecuredZooKeeper, tmp_path: Path) -> None:
    """ZooKeeper closes the connection without a word, as it does at its stop: only its silence tells."""
    servers, used = (secured.plain, security(secured.keys())) if uses_tls else (secured.tls, PLAIN)
    advice = "zookeeper.ssl.client.enable=true needs" if uses_tls else "set zookeeper.ssl.client.enable=true"

    async def work() -> None:
        with pytest.raises(StoreAwayError, match=advice):
            async with opened(servers, tmp_path.name, used, patience_ms=3000):
                pass

    run(work)


def test_one_server_that_refuses_does_not_keep_a_broker_from_the_others(
    secured: SecuredZooKeeper, tmp_path: Path
) -> None:
    async def work() -> None:
        servers = f"{secured.plain},{secured.tls}"  # the first does not speak TLS
        async with opened(servers, tmp_path.name, security(secured.keys())) as store:
            assert await store.create("a", b"1") == 0

    run(work)


def test_files_are_read_again_for_each_connection(
    secured: SecuredZooKeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used = tmp_path / "client.pem"
    used.touch(0o600)
    used.write_bytes(secured.client.store.read_bytes())
    keys = secured.keys(zookeeper_ssl_keystore_location=str(used))

    async def work() -> None:
        async with (
            Proxy(secured.tls_port) as proxy,
            opened(f"localhost:{proxy.port}", tmp_path.name, security(keys)) as store,
        ):
            await store.create("a", b"1")
            used.write_text("no key")
            proxy.cut()
            while "client.pem" not in caplog.text:  # refused, with its name
                await asyncio.sleep(0.01)
            used.write_bytes(secured.client.store.read_bytes())
            while True:
                try:
                    found = await store.get("a")
                    break
                except StoreError:
                    await asyncio.sleep(0.01)
            assert found is not None
            assert found.value == b"1"

    with caplog.at_level(logging.WARNING):
        run(work)


# ACLs


async def acls_of(store: MetadataStore, path: str) -> set[tuple[str, str, int]]:
    assert isinstance(store, ZooKeeperStore)
    found = (await asyncio.to_thread(store._connection._client.get_acls, path))[0]
    return {(one.id.scheme, one.id.id, one.perms) for one in found}


@pytest.mark.parametrize("how", ["certificate", "login"])
def test_nodes_belong_to_their_creator_and_secrets_are_hidden(
    how: str, secured: SecuredZooKeeper, tmp_path: Path
) -> None:
    is_login, cluster = how == "login", tmp_path.name
    keys = login() if is_login else secured.keys()
    servers = secured.plain if is_login else secured.tls
    creator = ("sasl", "kafka", _ALL) if is_login else ("x509", "CN=broker", _ALL)
    anyone = ("world", "anyone", _READ)
    folder = f"/seglog/{cluster}/names"

    async def work() -> None:
        async with opened(servers, cluster, security(keys | {"zookeeper.set.acl": "true"})) as store:
            session = await store.session(20_000, lambda: None)
            await store.commit([Change(name, b"1", MISSING) for name in ("topics/t", *_SECRET)])
            await store.commit([Change("brokers/1", b"1", MISSING, session=session)])
            for path in (f"/seglog/{cluster}", folder, f"{folder}/topics", f"{folder}/topics/t"):
                assert await acls_of(store, path) == {creator, anyone}, path
            for path in ("brokers", "brokers/1", "config", "config/users:alice", "config/acls:topic:t"):
                assert await acls_of(store, f"{folder}/{path}") == {creator}, path
            assert (await store.load("config")).keys() == set(_SECRET)
            outside = KazooClient(secured.plain)
            outside.start()
            try:
                assert outside.get(f"{folder}/topics/t")[0] == b"1"
                with pytest.raises(NoAuthError):
                    outside.get(f"{folder}/config/users:alice")
                with pytest.raises(NoAuthError):
                    outside.get(f"{folder}/brokers/1")
                with pytest.raises(NoAuthError):
                    outside.get_children(f"{folder}/config")
                with pytest.raises(NoAuthError):
                    outside.set(f"{folder}/topics/t", b"2")
                with pytest.raises(NoAuthError):
                    outside.create(f"{folder}/topics/u", b"")
                with pytest.raises(NoAuthError):
                    outside.delete(f"{folder}/topics/t")
            finally:
                outside.stop()
                outside.close()
            await session.close()

        for other in (PLAIN, security(login("other", "other-secret"))):
            with pytest.raises(StoreRefusedError, match=r"creator connects with another cluster.store.jaas.config or"):
                async with opened(secured.plain, cluster, other):
                    pass

    run(work)


def test_a_value_that_may_not_be_read_is_not_missing(secured: SecuredZooKeeper, tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(secured.plain, tmp_path.name, security(login())) as open_to_all:
            async with opened(secured.plain, tmp_path.name, security(login() | {"zookeeper.set.acl": "true"})) as mine:
                await mine.create("config/users/alice", b"secret")
            assert await open_to_all.get("config/users/alice") is not None  # by the same user
        async with opened(secured.plain, tmp_path.name, PLAIN) as other:
            for reading in (other.get("config/users/alice"), other.load("config")):
                with pytest.raises(StoreError, match="the ACL of this node does not allow this client"):
                    await reading

    run(work)


def test_acls_need_a_user(secured: SecuredZooKeeper, tmp_path: Path) -> None:
    """The first is found in the configuration. ZooKeeper finds the second if it does not ask for a certificate."""
    without = secured.keys(zookeeper_set_acl="true")
    del without["zookeeper.ssl.keystore.location"]
    for keys in ({"zookeeper.set.acl": "true"}, without):
        with pytest.raises(InvalidConfigError, match=r"zookeeper.set.acl=true needs a user of ZooKeeper"):
            security(keys)

    async def work() -> None:
        with pytest.raises(StoreRefusedError, match="this server of ZooKeeper authenticates no clients here"):
            async with opened(secured.plain, tmp_path.name, ZooKeeperSecurity(sets_acls=True)):
                pass

    run(work)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNIO"}, "TLS needs .*Netty"),
        ({"zookeeper.ssl.keystore.location": "/none.pem"}, "zookeeper.ssl.keystore.location: /none.pem"),
        ({"zookeeper.ssl.truststore.location": "{key}"}, "zookeeper.ssl.truststore.location: .*broker.key"),
        ({"zookeeper.ssl.keystore.location": "{p12}"}, "its password is zookeeper.ssl.keystore.password"),
        (
            {"zookeeper.ssl.keystore.location": "{encrypted}"},
            "is encrypted: set zookeeper.ssl.keystore.password",
        ),
        (
            {"zookeeper.ssl.keystore.location": "{encrypted}", "zookeeper.ssl.keystore.password": "guessed"},
            "zookeeper.ssl.keystore.password may be wrong",
        ),
        ({"zookeeper.ssl.cipher.suites": "RC4"}, "zookeeper.ssl.cipher.suites='RC4'"),
        ({"zookeeper.ssl.enabled.protocols": "SSLv3"}, "zookeeper.ssl.enabled.protocols='SSLv3'"),
        ({"zookeeper.ssl.crl.enable": "true"}, "seglog does not check whether certificates are revoked"),
        (
            {"cluster.store.jaas.config": LOGIN.replace("DigestLoginModule", "Krb5LoginModule").format("a", "b")},
            "cluster.store.jaas.config names the login module .*Krb5LoginModule, but seglog has only",
        ),
        ({"cluster.store.jaas.config": LOGIN.format("a", "")}, "has no username and password"),
        ({"cluster.store.jaas.config": "secret-text"}, r"cluster.store.jaas.config=\[hidden\] is not"),
    ],
)
def test_keys_that_cannot_be_used_are_named(keys: dict[str, str], expected: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    broker, encrypted = authority.issue("broker"), authority.issue("encrypted", password="key-secret")
    p12 = tmp_path / "client.p12"
    command = ("openssl", "pkcs12", "-export", "-inkey", broker.key, "-in", broker.chain, "-passout", "pass:store")
    subprocess.run([*command, "-out", p12], check=True, capture_output=True, timeout=60)
    files = {"key": broker.key, "p12": p12, "encrypted": encrypted.store}
    given = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(authority.certificate),
        **{key: text.format(**files) if text[0] == "{" else text for key, text in keys.items()},
    }
    with pytest.raises(InvalidConfigError, match=expected) as raised:
        security(given)
    assert "secret-text" not in str(raised.value)


def test_an_answer_that_is_decrypted_already_is_not_waited_for(secured: SecuredZooKeeper) -> None:
    """Two answers in one record of TLS: kazoo reads the first, and the socket has nothing more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secured.client.store)
    theirs, ours = socket.socketpair()
    with ThreadPoolExecutor(1) as pool, theirs, ours:
        serving = pool.submit(context.wrap_socket, theirs, server_side=True)
        trusting = ssl.create_default_context(cafile=str(secured.authority.certificate))
        with trusting.wrap_socket(ours, server_hostname="broker") as client, serving.result() as server:
            server.sendall(b"12345678")
            assert client.recv(4) == b"1234"
            idle, signal = socket.socketpair()
            with idle, signal:
                sockets = _Sockets(PLAIN)
                assert sockets.select([client, idle], [], [], 0)[0] == [client]
                signal.sendall(b"x")
                assert sockets.select([client, idle], [], [], 0)[0] == [client, idle]
                assert client.recv(4) == b"5678"
                assert sockets.select([client, idle], [], [], 0)[0] == [idle]


# Brokers and commands


def test_brokers_and_commands_take_the_same_keys(
    secured: SecuredZooKeeper, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    address = f"zookeeper://{secured.tls}/{tmp_path.name}"
    keys = secured.keys(zookeeper_set_acl="true") | login()
    broker = {"node.id": "1", "log.dirs": str(tmp_path / "log"), "cluster.store": address, "num.partitions": "1"}
    broker["listeners"] = "PLAINTEXT://127.0.0.1:0"

    async def work() -> None:
        async with Node(BrokerConfig.from_mapping(broker | keys)) as node:
            assert node.failure is None
        with pytest.raises(StoreRefusedError, match=r"the login of kafka by cluster.store.jaas.config is refused"):
            await Node(BrokerConfig.from_mapping(broker | keys | login(password="guessed"))).start()

    run(work)
    files = {}
    for name, given in (("good", keys), ("bad", keys | login(password="guessed"))):
        files[name] = tmp_path / f"{name}.properties"
        # the other keys of a broker do not count
        files[name].write_text("".join(f"{key}={text}\n" for key, text in (broker | {"log.dirs": ""} | given).items()))
    password = tmp_path / "password"
    password.write_text("alice-secret\n")
    seglog = run_here(capfdbinary)
    users = ("--store", address, "--store-config")
    assert seglog("users", "add", "alice", *users, files["good"], "--password-file", password).code == 0
    assert b"alice: SCRAM" in seglog("users", "list", *users, files["good"]).out
    assert seglog("cluster", "backup", *users, files["good"], tmp_path / "copy").code == 0
    refused = seglog("users", "list", *users, files["bad"])
    assert (refused.code, refused.out) == (2, b"")
    assert "the login of kafka by cluster.store.jaas.config is refused" in refused.err
