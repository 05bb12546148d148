"""OAUTHBEARER on a listener: stock clients with tokens, the keys that verify them, and sessions that end with them."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.broker.security.sasl_session import SaslSession
from seglog.broker.security.token_keys import Refresh, TokenKeys
from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import InvalidConfigError, MissingExtraError
from seglog.core.ground import Threads
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.python_clients import aiokafka_abc, aiokafka_admin, confluent_kafka, kafka, kafka_oauth
from tests.client.security.token_endpoint import TokenEndpoint
from tests.kit.certificates import Authority
from tests.kit.manual_clock import ManualClock
from tests.kit.token_issuer import AUDIENCE, ISSUER, TokenIssuer, new_key, unsecured_token

LISTENERS: Final = {"OAUTH": "SASL_PLAINTEXT", "SHORT": "SASL_PLAINTEXT", "PLAIN_TOO": "SASL_PLAINTEXT"}
SHORT_MS: Final = 60_000
UNSECURED: Final = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
_PREFIX: Final = "sasl.oauthbearer"
RULES: Final = {f"{_PREFIX}.expected.audience": f"other,{AUDIENCE}", f"{_PREFIX}.expected.issuer": ISSUER}


def settings_of(url: str) -> dict[str, str]:
    return {
        "listeners": ",".join(["PLAINTEXT://127.0.0.1:0", *(f"{name}://127.0.0.1:0" for name in LISTENERS)]),
        "listener.security.protocol.map": ",".join(
            ["PLAINTEXT:PLAINTEXT", *(f"{name}:{protocol}" for name, protocol in LISTENERS.items())]
        ),
        "connection.failed.authentication.delay.ms": "1",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{_PREFIX}.jwks.endpoint.url": url,
        **RULES,
        "listener.name.short.oauthbearer.connections.max.reauth.ms": str(SHORT_MS),
        "listener.name.plain_too.sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN",
        "listener.name.plain_too.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="x";'
        ),
    }


class OauthNode(RunningNode):
    """A broker that fetches the keys of ``issuer`` from an endpoint."""

    def __init__(self, path: Path, settings: Mapping[str, str] | None = None) -> None:
        self.issuer = TokenIssuer()
        self.endpoint = TokenEndpoint(self.issuer.jwks(), tls=_server_context(path))
        trust = path / "authority" / "ca.pem"
        jaas = (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            f'ssl.truststore.type="PEM" ssl.truststore.location="{trust}";'
        )
        own = {f"listener.name.{name.lower()}.oauthbearer.sasl.jaas.config": jaas for name in LISTENERS}
        super().__init__(path / "log", {**settings_of(self.endpoint.url), **own, **(settings or {})})

    def start(self) -> None:
        self.endpoint.start()
        try:
            super().start()
        except BaseException:
            self.endpoint.leave()
            raise

    def leave(self) -> None:
        super().leave()
        self.endpoint.leave()

    def at(self, listener: str) -> str:
        return next(address.host_port for address in self.node.addresses if address.name == listener)


def _server_context(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(path / "authority").issue("endpoint", "IP:127.0.0.1").store)
    return context


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OauthNode]:
    with OauthNode(tmp_path_factory.mktemp("oauth")) as running:
        with Wire(running.at("PLAINTEXT")) as wire:
            wire.create_topic("t")
        yield running


def log_in(wire: Wire, token: str, version: int = 1, *, more: str = "", header: str = "n,,") -> Any:
    """The last answer."""
    answer = wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="OAUTHBEARER")
    assert answer.error_code == 0
    message = f"{header}\x01auth=Bearer {token}\x01{more}\x01".encode()
    return wire.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=message)


# Stock clients


def librdkafka(at: str, token: str) -> list[str]:
    config = {
        "bootstrap.servers": at,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 3600, "", {"traceparent": "00-1"}),
        "log_level": 0,
        "group.id": "g",
    }
    with closing(confluent_kafka.Consumer(config)) as consumer:
        return list(consumer.list_topics(timeout=30 if token.startswith("ey") else 3).topics)


def aio(at: str, token: str) -> list[str]:
    async def give(_: object) -> str:
        return token

    async def run() -> list[str]:
        admin = aiokafka_admin.AIOKafkaAdminClient(
            bootstrap_servers=at,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=type("Provider", (aiokafka_abc.AbstractTokenProvider,), {"token": give})(),
        )
        try:
            await admin.start()
            topics: list[str] = await admin.list_topics()
            return topics
        finally:
            with suppress(Exception):
                await admin.close()

    return asyncio.run(run())


def kafka_python(at: str, token: str) -> list[str]:
    provider = type("Provider", (kafka_oauth.AbstractTokenProvider,), {"token": lambda _: token})
    with closing(
        kafka.KafkaConsumer(
            bootstrap_servers=at,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider(),
            bootstrap_timeout_ms=30_000 if token.startswith("ey") else 2000,
        )
    ) as consumer:
        return list(consumer.topics())


def ours(at: str, token: str) -> list[str]:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    options = {
        "bootstrap.servers": at,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{module} required token="{token}" extension_traceparent="00-1";',
    }
    with ClusterConnections(ClientConfig.from_mapping(options, use="read")) as cluster:
        return list(cluster.metadata().topics)


@pytest.mark.parametrize("client", [librdkafka, aio, kafka_python, ours])
def test_a_stock_client_gets_in_with_a_token(node: OauthNode, client: Callable[[str, str], list[str]]) -> None:
    assert "t" in client(node.at("OAUTH"), node.issuer.token())
    with pytest.raises(Exception, match=r"."):
        client(node.at("OAUTH"), "x." + TokenIssuer().token())


# On the wire


def test_the_principal_is_the_subject_of_the_token(node: OauthNode) -> None:
    with Wire(node.at("OAUTH")) as wire:
        assert log_in(wire, node.issuer.token("ann@example.com")).error_code == 0
        assert "User:ann@example.com" in [one.principal for one in node.connections("OAUTH")]
        assert wire.ask(ApiKey.METADATA, topics=None).topics


@pytest.mark.parametrize("kind", ["foreign", "expired", "none", "hmac", "audience", "garbage"])
def test_a_refused_token_gets_the_error_of_rfc_7628(node: OauthNode, kind: str) -> None:
    """Which tells all clients the same."""
    token = {
        "foreign": TokenIssuer().token(),
        "expired": node.issuer.token(lifetime=-100),
        "none": unsecured_token() + "YQ",
        "hmac": "eyJhbGciOiJIUzI1NiJ9.e30.YQ",
        "audience": node.issuer.token(aud="x"),
        "garbage": "x",
    }[kind]
    with Wire(node.at("OAUTH")) as wire:
        answer = log_in(wire, token)
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b'{"status":"invalid_token"}')
        last = wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"\x01")
        assert (last.error_code, last.error_message) == (58, '{"status":"invalid_token"}')
        assert wire.is_ended()


def test_no_request_is_answered_after_the_error(node: OauthNode) -> None:
    for act in ("metadata", "token"):
        with Wire(node.at("OAUTH")) as wire:
            log_in(wire, "x")
            if act == "metadata":
                wire.send(ApiKey.METADATA, topics=None)
            else:  # the right token comes too late
                message = f"n,,\x01auth=Bearer {node.issuer.token()}\x01\x01".encode()
                assert wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=message).error_code == 58
            assert wire.is_ended()


def test_a_message_that_cannot_be_read_has_kafkas_words(node: OauthNode) -> None:
    with Wire(node.at("OAUTH")) as wire:
        wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="OAUTHBEARER")
        answer = wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"n,,\x01\x01")
        words = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
        assert (answer.error_code, answer.error_message) == (58, words)


def test_the_name_to_act_for_must_be_the_users(node: OauthNode) -> None:
    with Wire(node.at("OAUTH")) as wire:
        assert log_in(wire, node.issuer.token(), header="n,a=alice,").error_code == 0
    with Wire(node.at("OAUTH")) as wire:
        answer = log_in(wire, node.issuer.token(), header="n,a=bob,")
        assert answer.error_message == (
            "Authentication failed: Client requested an authorization id (bob) that is different from the token's "
            "principal name (alice)"
        )


def test_an_old_client_sends_its_token_without_a_frame(node: OauthNode) -> None:
    with Wire(node.at("OAUTH")) as wire:
        assert wire.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="OAUTHBEARER").error_code == 0
        wire.send_raw(f"n,,\x01auth=Bearer {node.issuer.token()}\x01\x01".encode())
        assert wire.receive(4) == bytes(4)
        assert wire.ask(ApiKey.METADATA, topics=None).topics


# Sessions


def test_a_session_ends_with_its_token(node: OauthNode) -> None:
    """Or before, if the listener says so."""
    with Wire(node.at("OAUTH")) as wire:
        lifetime = log_in(wire, node.issuer.token(lifetime=600)).session_lifetime
        assert 0 < lifetime <= 600_000
        session = node.only_connection("OAUTH").handler
        assert isinstance(session, SaslSession)
        assert log_in(wire, node.issuer.token(lifetime=6000)).session_lifetime > 600_000
        assert wire.ask(ApiKey.METADATA, topics=None).topics
        session._ends_at = 0.0
        wire.send(ApiKey.METADATA, topics=None)
        assert wire.is_ended()
    with Wire(node.at("SHORT")) as wire:
        assert log_in(wire, node.issuer.token(lifetime=600)).session_lifetime == SHORT_MS
    with Wire(node.at("SHORT")) as wire:
        assert log_in(wire, node.issuer.token(lifetime=10)).session_lifetime <= 10_000


def test_a_token_in_the_skew_opens_no_session(node: OauthNode) -> None:
    """It is taken, and ends at once: as in Kafka."""
    with Wire(node.at("OAUTH")) as wire:
        answer = log_in(wire, node.issuer.token(lifetime=-5, iat=1))
        assert (answer.error_code, answer.session_lifetime) == (0, 0)
        wire.send(ApiKey.METADATA, topics=None)
        assert wire.is_ended()


def test_another_user_may_not_go_on(node: OauthNode) -> None:
    with Wire(node.at("OAUTH")) as wire:
        log_in(wire, node.issuer.token("ann"))
        answer = log_in(wire, node.issuer.token("bob"))
        assert answer.error_message == ("Cannot change principals during re-authentication from User:ann: User:bob")


# Keys


def keys_of(node: OauthNode, listener: str = "OAUTH") -> TokenKeys:
    found = node.node._secured[listener]._parts.tokens
    assert found is not None
    return found


def test_a_new_key_is_fetched_once_for_all_who_need_it(tmp_path: Path) -> None:
    with OauthNode(tmp_path) as node:
        with Wire(node.at("OAUTH")) as wire:
            assert log_in(wire, node.issuer.token()).error_code == 0
        keys = keys_of(node)
        before = keys.fetches
        node.issuer.keys["two"] = new_key("RS256")
        node.endpoint.answer = node.issuer.jwks(["two"])
        token = node.issuer.token(kid="two", algorithm="RS256")
        keys._tried_at = -1000.0  # the last fetch was long ago
        with Wire(node.at("OAUTH")) as first, Wire(node.at("OAUTH")) as second:
            for wire in (first, second):
                wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="OAUTHBEARER")
                message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
                wire.send(ApiKey.SASL_AUTHENTICATE, auth_bytes=message)
            for wire in (first, second):
                answer = wire.answer(ApiKey.SASL_AUTHENTICATE)
                assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"")
        assert keys.fetches == before + 1
        with Wire(node.at("OAUTH")) as wire:  # a key that does not exist is not asked for again and again
            log_in(wire, node.issuer.token(header={"kid": "none"}))
        assert keys.fetches == before + 1
        with Wire(node.at("OAUTH")) as wire:  # and the key that is gone is not believed any more
            assert bytes(log_in(wire, node.issuer.token()).auth_bytes)


def test_an_endpoint_that_fails_leaves_the_old_keys(tmp_path: Path) -> None:
    with OauthNode(tmp_path, {f"{_PREFIX}.jwks.endpoint.refresh.ms": "1"}) as node:
        keys = keys_of(node)
        with Wire(node.at("OAUTH")) as wire:
            assert log_in(wire, node.issuer.token()).error_code == 0
        for status, answer in ((500, {}), (200, b"[" * 100_000), (200, {"keys": []}), (200, b"x" * (2 << 20))):
            node.endpoint.status, node.endpoint.answer = status, answer
            keys._failures = 0
            before = keys.fetches
            with Wire(node.at("OAUTH")) as wire:
                assert not bytes(log_in(wire, node.issuer.token()).auth_bytes)
            assert keys.fetches == before + 1


def test_failures_are_retried_after_pauses_that_double() -> None:
    clock = ManualClock()

    def fail() -> bytes:
        raise OSError("down")

    async def run() -> None:
        keys = TokenKeys("x", fail, Refresh(60, 1, 4), Threads(), clock.monotonic)
        for pause in (1, 2, 4, 4):
            assert (keys.is_due, keys.may_have_others) == (True, True)
            await keys.renew()
            clock.advance(pause * 1000 - 1)
            assert (keys.is_due, keys.may_have_others) == (False, False)
            clock.advance(1)

    asyncio.run(run())


def test_a_client_that_goes_away_does_not_stop_the_fetch_for_others() -> None:
    issuer, go_on = TokenIssuer(), threading.Event()

    def load() -> bytes:
        go_on.wait(60)
        return json.dumps(issuer.jwks()).encode()

    async def run() -> None:
        keys = TokenKeys("x", load, Refresh(60, 1, 4), Threads(), ManualClock().monotonic)
        loop = asyncio.get_running_loop()
        gone, other = loop.create_task(keys.renew()), loop.create_task(keys.renew())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await other
        assert (len(keys.current), keys.fetches, gone.cancelled()) == (1, 1, True)

    asyncio.run(run())


def test_keys_in_a_file_are_read_again_when_it_changes(tmp_path: Path) -> None:
    issuer, path = TokenIssuer(), tmp_path / "keys.json"
    path.write_text(json.dumps(issuer.jwks()))
    with RunningNode(tmp_path / "log", settings_of(path.as_uri())) as node:
        at = next(address.host_port for address in node.node.addresses if address.name == "OAUTH")
        with Wire(at) as wire:
            assert not bytes(log_in(wire, issuer.token()).auth_bytes)
        other = TokenIssuer(one=new_key("RS256"))
        path.write_text(json.dumps(other.jwks()))
        with Wire(at) as wire:
            assert not bytes(log_in(wire, other.token(algorithm="RS256")).auth_bytes)
        with Wire(at) as wire:
            assert bytes(log_in(wire, issuer.token()).auth_bytes)


# The configuration


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({f"{_PREFIX}.jwks.endpoint.url": ""}, "needs sasl.oauthbearer.jwks.endpoint.url"),
        ({f"{_PREFIX}.jwks.endpoint.url": "http://idp.example/keys"}, "could sign tokens"),
        ({f"{_PREFIX}.jwks.endpoint.url": "ftp://x/y"}, "https://HOST"),
        ({f"{_PREFIX}.jwks.endpoint.url": "file:///no/such/file"}, "/no/such/file"),
        ({f"{_PREFIX}.jwks.endpoint.url": "file:///dev/null"}, "/dev/null"),
        ({f"{_PREFIX}.expected.audience": " , "}, "needs sasl.oauthbearer.expected.audience"),
        ({f"{_PREFIX}.expected.issuer": ""}, "needs sasl.oauthbearer.expected.issuer"),
        ({"listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": UNSECURED}, "make its own token"),
    ],
    ids=str,
)
def test_a_listener_that_could_verify_nothing_is_refused(tmp_path: Path, change: dict[str, str], why: str) -> None:
    settings = {**settings_of("https://idp.example/keys"), **change}
    with pytest.raises(InvalidConfigError, match=why), RunningNode(tmp_path, settings):
        pass


def test_a_class_of_somebody_else_is_refused(tmp_path: Path) -> None:
    key = "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class"
    with pytest.raises(InvalidConfigError, match=key):
        RunningNode(tmp_path, {key: "com.example.Handler"})


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "joserfc", None)
    settings = settings_of("https://idp.example/keys")
    with pytest.raises(MissingExtraError, match=r"pip install 'seglog\[oauth\]'"), RunningNode(tmp_path, settings):
        pass


def test_unsecured_tokens_must_be_asked_for(tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    settings = settings_of("https://idp.example/keys") | {
        "seglog.insecure.listeners": "true",
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
        "listener.name.oauth.oauthbearer.sasl.jaas.config": (
            f'{module} required unsecuredValidatorRequiredScope="a b" unsecuredLoginStringClaim_sub="broker";'
        ),
    }
    with RunningNode(tmp_path, settings) as node:
        at = next(address.host_port for address in node.node.addresses if address.name == "OAUTH")
        with Wire(at) as wire:
            answer = log_in(wire, unsecured_token(scope=["b", "a", "c"]))
            assert answer.session_lifetime > 0
            assert wire.ask(ApiKey.METADATA, topics=()).brokers
        with Wire(at) as wire:
            told = bytes(log_in(wire, unsecured_token(scope="a")).auth_bytes)
            assert told == b'{"status":"insufficient_scope", "scope":"a b"}'
        with Wire(at) as wire:
            assert bytes(log_in(wire, TokenIssuer().token()).auth_bytes) == b'{"status":"invalid_token"}'
