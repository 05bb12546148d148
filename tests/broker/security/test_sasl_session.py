"""What a client of a listener with SASL reaches before it has authenticated, and the order that it must keep."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from typing import Final

import pytest

from seglog.broker.security.sasl_session import SaslSession
from seglog.protocol.apis import APIS, ApiKey
from tests.broker.broker_thread import Wire
from tests.broker.fuzzing import Requests, versions
from tests.broker.security.secured_node import MECHANISMS, PASSWORD, SESSION_MS, USER, SecuredNode, log_in
from tests.cases import case

ALLOWED: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


@pytest.fixture
def wire(secured: SecuredNode) -> Iterator[Wire]:
    with Wire(secured.at("SASL")) as connection:
        yield connection


@pytest.mark.parametrize("key", [ApiKey(key) for key in APIS if key not in ALLOWED], ids=lambda key: key.name)
def test_no_api_is_answered_before_authentication(secured: SecuredNode, key: ApiKey) -> None:
    """In any version, also one that is not served. The head of the frame is enough for the refusal."""
    for version in range(APIS[key].low, APIS[key].high + 2):
        for frame in (struct.pack(">ihh", 1 << 20, key, version), struct.pack(">ihhih", 10, key, version, 1, -1)):
            with Wire(secured.at("SASL")) as wire:
                wire.send_bytes(frame)
                assert wire.is_ended(), version


@pytest.mark.parametrize("version", range(APIS[ApiKey.API_VERSIONS].high + 1))
def test_api_versions_are_told_to_everybody(wire: Wire, version: int) -> None:
    contents: dict[str, object] = {"client_software_name": "x", "client_software_version": "1", "node_id": -1}
    assert wire.ask(ApiKey.API_VERSIONS, version, **contents).error_code == 0


def test_an_unknown_mechanism_gets_the_list_of_those_there_are(wire: Wire) -> None:
    answer = wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="GSSAPI")
    assert (answer.error_code, tuple(answer.mechanisms)) == (33, MECHANISMS)
    assert wire.is_ended()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (f"\0{USER}\0wrong", "Authentication failed: Invalid username or password"),
        (f"\0bob\0{PASSWORD}", "Authentication failed: Invalid username or password"),
        (f"\0\0{PASSWORD}", "Authentication failed: username not specified"),
        (f"\0{USER}\0", "Authentication failed: password not specified"),
        (
            f"bob\0{USER}\0{PASSWORD}",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (
            f"{USER}\0{PASSWORD}",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN",
        ),
        (
            "\0a\0b\0c",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN",
        ),
    ],
)
def test_a_failure_has_kafkas_code_and_words(wire: Wire, message: str, reason: str) -> None:
    wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN")
    answer = wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=message.encode())
    assert (answer.error_code, answer.error_message, answer.session_lifetime) == (58, reason, 0)
    assert wire.is_ended()


def test_authentication_without_a_handshake_is_illegal(wire: Wire) -> None:
    assert wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"x").error_code == 34
    assert wire.is_ended()


def test_a_second_handshake_is_illegal_before_the_end_of_the_first(wire: Wire) -> None:
    wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="SCRAM-SHA-256")
    assert wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="SCRAM-SHA-256").error_code == 34
    assert wire.is_ended()


def test_sasl_after_authentication_is_illegal_if_sessions_do_not_end(wire: Wire) -> None:
    log_in(wire)
    assert wire.ask(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN").error_code == 34
    assert wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"x").error_code == 34
    assert wire.ask(ApiKey.METADATA, topics=None).topics


def test_a_request_before_authentication_may_be_small_only(secured: SecuredNode) -> None:
    for key in ALLOWED:
        with Wire(secured.at("SASL")) as wire:
            wire.send_bytes(struct.pack(">ihh", (512 << 10) + 1, key, 0))
            assert wire.is_ended()


@pytest.mark.parametrize("mechanism", ["PLAIN"])
def test_messages_without_a_frame_follow_the_old_handshake(wire: Wire, mechanism: str) -> None:
    """Of clients before KIP-152."""
    assert wire.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism=mechanism).error_code == 0
    wire.send_raw(f"\0{USER}\0{PASSWORD}".encode())
    assert wire.receive(4) == bytes(4)
    assert wire.ask(ApiKey.METADATA, topics=None).topics


def test_a_failure_after_the_old_handshake_ends_the_connection(wire: Wire) -> None:
    wire.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
    wire.send_raw(f"\0{USER}\0wrong".encode())
    assert wire.is_ended()


# Sessions that end


@pytest.fixture
def short(secured: SecuredNode) -> Iterator[Wire]:
    """Authenticated."""
    with Wire(secured.at("SHORT")) as connection:
        assert connection.ask(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN").error_code == 0
        answer = connection.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
        assert answer.session_lifetime == SESSION_MS
        yield connection


def test_a_session_goes_on_after_another_authentication(short: Wire) -> None:
    log_in(short)
    assert short.ask(ApiKey.METADATA, topics=None).topics
    # Again at once is too soon, and no reason to end the session.
    assert short.ask(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN").error_code == 34
    assert short.ask(ApiKey.METADATA, topics=None).topics


def test_no_request_is_answered_in_the_middle_of_another_authentication(short: Wire) -> None:
    short.ask(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN")
    short.send(ApiKey.METADATA, topics=None)
    assert short.is_ended()


def test_another_mechanism_is_refused(short: Wire) -> None:
    short.ask(ApiKey.SASL_HANDSHAKE, mechanism="SCRAM-SHA-256")
    answer = short.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"n,,n=alice,r=x")
    assert answer.error_code == 58
    assert answer.error_message == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism 'PLAIN'"
    )
    assert short.is_ended()


def test_a_session_that_has_ended_answers_no_more(secured: SecuredNode, short: Wire) -> None:
    connection = secured.only_connection("SHORT")

    async def end() -> None:
        assert isinstance(connection.handler, SaslSession)
        connection.handler._ends_at = 0.0

    secured.on_loop(end)
    short.send(ApiKey.METADATA, topics=None)
    assert short.is_ended()


# Any order


def test_no_order_of_requests_opens_the_door(secured: SecuredNode) -> None:
    """Random sequences of right, wrong and meaningless frames. The client gets records of the broker's metadata only if
    the right password came right after a handshake for it, in the words of a naive model."""
    rng = Random(7)
    requests = Requests(rng)
    for _ in range(150):
        case()
        with Wire(secured.at("SASL")) as wire:
            state = "new"
            for _ in range(rng.randrange(1, 8)):
                act = rng.choice(["handshake", "old", "right", "wrong", "metadata", "versions", "noise"])
                state = _try(wire, act, state, requests, rng)
                if state == "closed":
                    break


def _try(wire: Wire, act: str, state: str, requests: Requests, rng: Random) -> str:
    right, wrong = f"\0{USER}\0{PASSWORD}".encode(), f"\0{USER}\0{rng.randbytes(3).hex()}".encode()
    try:
        if act in ("handshake", "old"):
            answer = wire.ask(ApiKey.SASL_HANDSHAKE, int(act == "handshake"), mechanism="PLAIN")
            if answer.error_code:
                assert state in ("begun", "open")
                return state if state == "open" else "closed"
            assert state == "new"
            return "begun" if act == "handshake" else "raw"
        if act in ("right", "wrong"):
            answer = wire.ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=right if act == "right" else wrong)
            assert bool(answer.error_code) == (act == "wrong" or state != "begun")
            if state == "open":
                return state
            return "closed" if answer.error_code else "open"
        if act == "metadata":
            assert wire.ask(ApiKey.METADATA, topics=None).topics
            assert state == "open"
            return state
        if act == "versions":
            wire.ask(ApiKey.API_VERSIONS, 0)
            assert state in ("new", "open")
            return state
        key, version = rng.choice(versions())
        wire.send_raw(rng.randbytes(rng.randrange(4, 40)) + requests.mutated(requests.frame(key, version, 1)))
    except (ConnectionError, TimeoutError):
        pass
    return "closed"
