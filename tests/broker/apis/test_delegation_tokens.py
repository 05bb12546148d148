"""Delegation tokens: who may create, see, renew and expire them, and logging in with one."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.broker.security.delegation_tokens import DelegationTokens
from seglog.broker.security.scram import SCRAM_DIGESTS
from seglog.client.security.scram import new_nonce, scram
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import Wire
from tests.broker.security.secured_node import SecuredNode, TlsWire, log_in
from tests.kit.waiting import wait_until

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR
USERS: Final = ("alice", "bob", "carol", "dave")
_JAAS: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required {};".format(
    " ".join(f'user_{user}="{user}-secret"' for user in USERS)
)
SETTINGS: Final = {
    "delegation.token.secret.key": "key of all brokers",
    "listener.name.sasl.plain.sasl.jaas.config": _JAAS,
}
DISABLED, NOT_FOUND, MISMATCH, NOT_ALLOWED, EXPIRED, WRONG_TYPE = 61, 62, 63, 64, 66, 67


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with SecuredNode(tmp_path_factory.mktemp("tokens"), SETTINGS) as running:
        yield running


class User(Wire):
    """A connection of an authenticated user."""

    def __init__(self, node: SecuredNode, name: str) -> None:
        super().__init__(node.at("SASL"))
        log_in(self, name, f"{name}-secret")

    def create(
        self, version: int = 3, *, renewers: tuple[str, ...] = (), owner: str | None = None, most: int = -1
    ) -> Any:
        return self.ask(
            ApiKey.CREATE_DELEGATION_TOKEN,
            version,
            renewers=[{"principal_type": "User", "principal_name": one} for one in renewers],
            max_lifetime=most,
            **({} if version < 3 else {"owner_principal_type": owner and "User", "owner_principal_name": owner}),
        )

    def renew(self, hmac: bytes, period: int = -1) -> Any:
        return self.ask(ApiKey.RENEW_DELEGATION_TOKEN, hmac=hmac, renew_period=period)

    def expire(self, hmac: bytes, period: int = -1) -> Any:
        return self.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=hmac, expiry_time_period=period)

    def tokens(self, *owners: str, version: int = 3) -> dict[str, Any]:
        """By id; of all owners if none is given."""
        asked = [{"principal_type": "User", "principal_name": one} for one in owners] or None
        answer = self.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, version, owners=asked)
        assert answer.error_code == 0
        return {one.token_id: one for one in answer.tokens}


def log_in_by_token(
    wire: Wire, token_id: str, hmac: bytes, mechanism: str = "SCRAM-SHA-256", *, word: str = "tokenauth=true"
) -> Any:
    """The last answer."""
    assert wire.ask(ApiKey.SASL_HANDSHAKE, mechanism=mechanism).error_code == 0
    password = base64.b64encode(hmac).decode()
    client = scram(SCRAM_DIGESTS[mechanism], token_id, password, new_nonce(), is_token=word == "tokenauth=true")
    answer = wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=next(client))
    return wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=client.send(bytes(answer.auth_bytes)))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_token_has_its_owner_and_times(node: SecuredNode, version: int) -> None:
    with User(node, "alice") as alice:
        before = int(time.time() * 1000)
        made = alice.create(version, renewers=("bob",), most=2 * DAY)
        assert (made.error_code, made.principal_type, made.principal_name) == (0, "User", "alice")
        assert before <= made.issue_timestamp <= int(time.time() * 1000)
        assert made.expiry_timestamp - made.issue_timestamp == DAY
        assert made.max_timestamp - made.issue_timestamp == 2 * DAY
        assert (len(made.token_id), len(made.hmac)) == (22, 64)
        seen = alice.tokens("alice", version=version)[made.token_id]
        assert bytes(seen.hmac) == bytes(made.hmac)
        assert [(one.principal_type, one.principal_name) for one in seen.renewers] == [("User", "bob")]
        assert (seen.issue_timestamp, seen.expiry_timestamp, seen.max_timestamp) == (
            made.issue_timestamp,
            made.expiry_timestamp,
            made.max_timestamp,
        )


def test_the_lifetime_has_a_limit(node: SecuredNode) -> None:
    with User(node, "alice") as alice:
        for most, lasts, expires in (
            (-1, 7 * DAY, DAY),
            (0, 7 * DAY, DAY),
            (1 << 40, 7 * DAY, DAY),
            (HOUR, HOUR, HOUR),
        ):
            made = alice.create(most=most)
            issued = made.issue_timestamp
            assert (made.max_timestamp - issued, made.expiry_timestamp - issued) == (lasts, expires)


def test_a_principal_may_ask_for_a_token_of_another(node: SecuredNode) -> None:
    """KIP-373. The requester sees the token, but does not renew it."""
    with User(node, "carol") as carol, User(node, "dave") as dave:
        made = carol.create(owner="dave")
        assert (made.principal_name, made.token_requester_principal_name) == ("dave", "carol")
        assert made.token_id in carol.tokens("carol")
        assert made.token_id in dave.tokens("dave")
        assert made.token_id not in carol.tokens("bob")
        assert carol.renew(made.hmac).error_code == MISMATCH
        assert carol.expire(made.hmac).error_code == MISMATCH
        assert dave.renew(made.hmac).error_code == 0
    with Wire(node.at("SASL")) as wire:
        assert log_in_by_token(wire, made.token_id, made.hmac).error_code == 0
        assert "User:dave" in [one.principal for one in node.connections("SASL")]


def test_owner_and_renewers_renew_and_expire(node: SecuredNode) -> None:
    with User(node, "alice") as alice, User(node, "bob") as bob, User(node, "dave") as dave:
        made = alice.create(renewers=("bob",))
        assert dave.renew(made.hmac).error_code == MISMATCH
        assert dave.expire(made.hmac).error_code == MISMATCH
        now = int(time.time() * 1000)
        renewed = bob.renew(made.hmac, HOUR)
        assert renewed.error_code == 0
        assert 0 <= renewed.expiry_timestamp - now - HOUR < HOUR
        assert alice.tokens("alice")[made.token_id].expiry_timestamp == renewed.expiry_timestamp
        assert alice.renew(made.hmac, 30 * DAY).expiry_timestamp - now < DAY + HOUR
        soon = bob.expire(made.hmac, 2 * HOUR)
        assert 0 <= soon.expiry_timestamp - now - 2 * HOUR < HOUR
        gone = alice.expire(made.hmac)
        assert gone.error_code == 0
        assert gone.expiry_timestamp >= now
        assert made.token_id not in alice.tokens()
        assert alice.renew(made.hmac).error_code == NOT_FOUND
        assert alice.expire(b"x").error_code == NOT_FOUND
        assert (alice.expire(b"x").expiry_timestamp, alice.renew(b"").expiry_timestamp) == (0, 0)


def test_an_expired_token_can_be_removed_only(node: SecuredNode) -> None:
    with User(node, "alice") as alice, Wire(node.at("SASL")) as wire:
        made = alice.create(most=1)
        wait_until(lambda: int(time.time() * 1000) > made.max_timestamp, "the token to expire")
        assert alice.renew(made.hmac).error_code == EXPIRED
        assert alice.expire(made.hmac, 1).error_code == EXPIRED
        answer = log_in_by_token(wire, made.token_id, made.hmac)
        assert answer.error_code == 58
        assert alice.expire(made.hmac).error_code == 0


def test_wrong_types_of_principals_are_refused(node: SecuredNode) -> None:
    with User(node, "alice") as alice:
        renewers = [{"principal_type": "Group", "principal_name": "x"}]
        made = alice.ask(ApiKey.CREATE_DELEGATION_TOKEN, 1, renewers=renewers, max_lifetime=-1)
        assert (made.error_code, made.principal_name, made.token_id, bytes(made.hmac)) == (WRONG_TYPE, "alice", "", b"")
        other = alice.ask(
            ApiKey.CREATE_DELEGATION_TOKEN,
            3,
            owner_principal_type="x",
            owner_principal_name="y",
            renewers=[],
            max_lifetime=1,
        )
        assert (other.error_code, other.principal_type, other.principal_name) == (WRONG_TYPE, "x", "y")
        assert alice.create(renewers=tuple(map(str, range(1001)))).error_code == 42


# Logging in


@pytest.mark.parametrize("mechanism", SCRAM_DIGESTS)
def test_a_token_logs_in_as_its_owner_until_it_expires(node: SecuredNode, mechanism: str) -> None:
    with User(node, "alice") as alice:
        made = alice.create(most=HOUR)
    for _ in range(2):
        with Wire(node.at("SASL")) as wire:
            answer = log_in_by_token(wire, made.token_id, made.hmac, mechanism)
            assert answer.error_code == 0
            assert 0 < answer.session_lifetime <= HOUR
            assert wire.ask(ApiKey.METADATA, topics=()).brokers


def test_no_token_logs_in_with_another_secret(node: SecuredNode) -> None:
    with User(node, "alice") as alice:
        made, other = alice.create(), alice.create()
    tries = [
        (made.token_id, bytes(other.hmac), "tokenauth=true"),
        (made.token_id, b"", "tokenauth=true"),
        (made.token_id, bytes(made.hmac), ""),  # not as a token
        ("x" * 22, bytes(made.hmac), "tokenauth=true"),
        ("alice", b"alice-secret", "tokenauth=true"),
    ]
    told = set()
    for token_id, secret, word in tries:
        with Wire(node.at("SASL")) as wire:
            answer = log_in_by_token(wire, token_id, secret, word=word)
            told.add((answer.error_code, answer.error_message))
            assert wire.is_ended()
    assert len(told) == 1
    assert told.pop()[0] == 58


def test_a_token_does_not_prolong_itself(node: SecuredNode) -> None:
    with User(node, "alice") as alice:
        made = alice.create(renewers=("alice",))
    with Wire(node.at("SASL")) as wire:
        log_in_by_token(wire, made.token_id, made.hmac)
        owner = {"owner_principal_type": None, "owner_principal_name": None}
        another = wire.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, renewers=[], max_lifetime=-1, **owner)
        assert another.error_code == NOT_ALLOWED
        assert wire.ask(ApiKey.RENEW_DELEGATION_TOKEN, hmac=made.hmac, renew_period=1).error_code == NOT_ALLOWED
        assert wire.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=made.hmac, expiry_time_period=1).error_code == NOT_ALLOWED
        assert wire.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None).error_code == NOT_ALLOWED


def test_an_anonymous_client_gets_no_token(node: SecuredNode) -> None:
    with Wire(node.at("PLAINTEXT")) as plain, TlsWire(node.at("TLS"), node.client_context()) as tls:
        for wire in (plain, tls):
            answer = wire.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
            assert (answer.error_code, tuple(answer.tokens)) == (NOT_ALLOWED, ())


def test_a_certificate_is_enough(node: SecuredNode) -> None:
    context = node.client_context()
    identity = node.authority.issue("ann")
    context.load_cert_chain(identity.chain, identity.key)
    with TlsWire(node.at("MTLS"), context) as wire:
        made = wire.ask(ApiKey.CREATE_DELEGATION_TOKEN, 1, renewers=[], max_lifetime=-1)
        assert (made.error_code, made.principal_name) == (0, "ANN")


# The store


def test_the_store_does_not_have_what_lets_a_client_in(node: SecuredNode) -> None:
    with User(node, "alice") as alice:
        made = alice.create()
    value = node.node.view.configs[f"config/tokens/{made.token_id}"]
    assert base64.b64encode(bytes(made.hmac)) not in value
    assert bytes(made.hmac) not in value
    assert bytes(made.hmac).hex().encode() not in value
    assert SETTINGS["delegation.token.secret.key"].encode() not in value


def test_tokens_outlive_the_broker_and_expired_ones_do_not(tmp_path: Path) -> None:
    settings = {**SETTINGS, "cluster.store": f"sqlite:{tmp_path / 'store'}", "node.id": "1"}
    with SecuredNode(tmp_path, settings) as node:
        with User(node, "alice") as alice:
            kept, soon = alice.create(), alice.create(most=1)
        node.stop()
        node._config = node._config.from_mapping(
            {**node._config.given, **_listener_keys(node), "delegation.token.expiry.check.interval.ms": "10"}
        )
        node.start()
        tokens = node.node.users.tokens
        assert isinstance(tokens, DelegationTokens)
        wait_until(lambda: [one.token_id for one in tokens.all()] == [kept.token_id], "the expired token to go")
        assert f"config/tokens/{soon.token_id}" not in node.node.view.configs
        with Wire(node.at("SASL")) as wire:
            assert log_in_by_token(wire, kept.token_id, kept.hmac).error_code == 0


def _listener_keys(node: SecuredNode) -> dict[str, str]:
    keys = node._config.listener_keys
    return {f"listener.name.{name.lower()}.{key}": value for name, own in keys.items() for key, value in own.items()}


def test_without_a_key_there_are_no_tokens(tmp_path: Path) -> None:
    settings = {key: value for key, value in SETTINGS.items() if not key.startswith("delegation")}
    with SecuredNode(tmp_path, settings) as node, User(node, "alice") as alice:
        assert alice.create().error_code == DISABLED
        assert alice.renew(b"x").error_code == DISABLED
        assert alice.expire(b"x").error_code == DISABLED
        assert alice.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None).error_code == DISABLED
    assert "key of all brokers" not in repr(node._config)
