"""The broker's side of SCRAM: against our client's side, against RFC 7677, and against clients that lie."""

from __future__ import annotations

import base64
from collections.abc import Generator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.broker.security.scram import Invented, ScramCredential, scram_server
from seglog.broker.security.verification import Verified
from seglog.client.security.scram import salted_password, scram
from tests.cases import case

_Server = Generator[bytes, bytes, Verified]
SEED = Invented(b"seed", 4096)


def server(digest: str, users: dict[str, ScramCredential], nonce: str = "server") -> _Server:
    made = scram_server(digest, users.get, lambda user: SEED.credential(digest, user), lambda: nonce)
    assert next(made) == b""
    return made


def last(exchange: _Server, message: bytes) -> Verified:
    with pytest.raises(StopIteration) as end:
        exchange.send(message)
    found: Verified = end.value.value
    return found


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(names, names, names, st.sampled_from(["sha256", "sha512"]))
def test_only_the_right_password_lets_in(user: str, password: str, tried: str, digest: str) -> None:
    case()
    credential = ScramCredential.decode(ScramCredential.of_password(digest, password).encode())
    exchange = server(digest, {user: credential})
    client = scram(digest, user, tried, "client")
    final = client.send(exchange.send(next(client)))
    if tried == password:
        verified = last(exchange, final)
        assert verified.user == user
        with pytest.raises(StopIteration):  # the client believes that this broker knows its password
            client.send(verified.answer)
    else:
        with pytest.raises(ValueError, match="does not know the password"):
            exchange.send(final)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password("sha256", "pencil", salt, 4096)
    users = {"user": ScramCredential.of_salted("sha256", salt, salted, 4096)}
    exchange = server("sha256", users, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.send(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0," + proof
    assert last(exchange, final) == Verified("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_an_unknown_user_looks_as_a_known_one_with_another_password() -> None:
    users = {"ann": ScramCredential.of_password("sha256", "x")}
    told = []
    for _ in range(2):
        for user in ("ann", "bob"):
            exchange, client = server("sha256", users), scram("sha256", user, "wrong", "client")
            first = exchange.send(next(client))
            with pytest.raises(ValueError, match="does not know") as refused:
                exchange.send(client.send(first))
            told.append((first, str(refused.value)))
    ann, bob, ann_again, bob_again = told
    assert (ann, bob) == (ann_again, bob_again)
    assert ann[1] == bob[1]
    assert [len(part) for part in ann[0].split(b",")] == [len(part) for part in bob[0].split(b",")]


def test_the_password_of_a_user_that_is_not_there_is_never_right() -> None:
    """Even if the invented credential were known."""
    invented = ScramCredential.of_password("sha256", "guessed")
    exchange = scram_server("sha256", lambda _: None, lambda _: invented)
    next(exchange)
    client = scram("sha256", "bob", "guessed", "client")
    with pytest.raises(ValueError, match="does not know"):
        exchange.send(client.send(exchange.send(next(client))))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"y,,n=ann,r=x",
        b"p=tls-unique,,n=ann,r=x",
        b"n,,n=a=b,r=x",
        b"n,,n=ann,r=",
        b"n,a=bob,n=ann,r=x",
        b"\xff",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    exchange = server("sha256", {"ann": ScramCredential.of_password("sha256", "x")})
    with pytest.raises(ValueError, match="client"):
        exchange.send(first)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.replace(b"c=biws", b"c=eSws"),
        lambda m: m.replace(b"clientserver", b"client"),
        lambda m: m.replace(b"clientserver", b"clientserves"),
        lambda m: m[:-8] + b"AAAAAAA=",
        lambda m: m.split(b",p=")[0] + b",p=AAAA",
        lambda m: m.split(b",p=")[0] + b",p=A",
        lambda m: m.split(b",p=")[0],
        lambda m: b"\xff" + m,
    ],
)
def test_a_last_message_that_was_changed_is_refused(change: object) -> None:
    assert callable(change)
    exchange = server("sha256", {"ann": ScramCredential.of_password("sha256", "x")})
    client = scram("sha256", "ann", "x", "client")
    final = client.send(exchange.send(next(client)))
    with pytest.raises(ValueError, match="client"):
        exchange.send(change(final))


def test_a_delegation_token_is_refused() -> None:
    exchange = server("sha256", {"ann": ScramCredential.of_password("sha256", "x")})
    client = scram("sha256", "ann", "x", "client", is_token=True)
    with pytest.raises(ValueError, match="does not know"):
        exchange.send(client.send(exchange.send(next(client))))


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_refused_by_valueerror(first: bytes, second: bytes) -> None:
    case()
    exchange = server("sha256", {"ann": ScramCredential.of_password("sha256", "x")})
    with suppress(ValueError):  # unless the first one is well-formed
        exchange.send(first)
        with pytest.raises(ValueError, match="client"):
            exchange.send(second)


def test_a_credential_shows_no_secret() -> None:
    assert repr(ScramCredential.of_password("sha256", "x")) == "ScramCredential(iterations=4096)"
