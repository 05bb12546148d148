"""SCRAM by the examples of its RFCs, and brokers that must not be trusted."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.security.scram import new_nonce, scram
from tests.cases import case

_NONCE = "rOprNGfwEbeRWgbNEkqO"
_FIRST = f"r={_NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def messages(digest: str, nonce: str, *answers: str) -> list[str]:
    """The client's messages to these answers, until it is satisfied."""
    exchange = scram(digest, "user", "pencil", nonce)
    sent = [next(exchange), *(exchange.send(answer.encode()) for answer in answers[:-1])]
    with pytest.raises(StopIteration):
        exchange.send(answers[-1].encode())
    return [one.decode() for one in sent]


def test_the_example_of_rfc_7677() -> None:
    assert messages("sha256", _NONCE, _FIRST, _FINAL) == [
        f"n,,n=user,r={_NONCE}",
        f"c=biws,r={_NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    ]


def test_the_example_of_rfc_5802() -> None:
    nonce = "fyko+d2lbbFgONRv9qkxdawL"
    first = f"r={nonce}3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
    assert messages("sha1", nonce, first, "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=") == [
        f"n,,n=user,r={nonce}",
        f"c=biws,r={nonce}3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    ]


@pytest.mark.parametrize(
    ("first", "final", "reason"),
    [
        (_FIRST, _FINAL.replace("6rri", "7rri"), "signature is wrong"),
        (_FIRST, "v=AAAA", "signature is wrong"),
        (_FIRST, "v=A", "not base64"),
        (_FIRST, "e=other-error", "answers 'other-error'"),
        (_FIRST, "", "last message cannot be read"),
        ("e=unknown-user", None, "answers 'unknown-user'"),
        (_FIRST.replace("4096", "4095"), None, "asks for 4095 iterations"),
        (_FIRST.replace("4096", "1000001"), None, "asks for 1000001 iterations"),
        (_FIRST.replace("4096", "0"), None, "first message cannot be read"),
        (_FIRST.replace("rOpr", "xOpr"), None, "does not continue the client's"),
        (f"r={_NONCE},s=AAAA,i=4096", None, "does not continue the client's"),
        (f"m=x,{_FIRST}", None, "first message cannot be read"),
        ("", None, "first message cannot be read"),
        ("\udcff", None, "first message cannot be read"),
    ],
)
def test_a_broker_that_is_not_trusted(first: str, final: str | None, reason: str) -> None:
    exchange = scram("sha256", "user", "pencil", _NONCE)
    next(exchange)
    if final is not None:
        exchange.send(first.encode())
        first = final
    with pytest.raises(ValueError, match=reason):
        exchange.send(first.encode("utf-8", "surrogateescape"))


@given(st.binary(max_size=60))
def test_any_answer_is_refused_in_order(answer: bytes) -> None:
    case()
    exchange = scram("sha256", "user", "pencil", _NONCE)
    next(exchange)
    with pytest.raises(ValueError, match="the broker"):
        exchange.send(answer)


def test_names_are_escaped_and_delegation_tokens_marked() -> None:
    first = next(scram("sha256", "a=b,ü", "p", "nonce", is_token=True))
    assert first.decode() == "n,,n=a=3Db=2Cü,r=nonce,tokenauth=true"


@pytest.mark.parametrize("digest", ["sha256", "sha512"])
def test_a_server_that_knows_the_keys_is_convinced(digest: str) -> None:
    """By the formulas of RFC 5802 section 3 from the server's side: it stores keys, not the password."""
    password, salt = "pässword", b"salt"
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, 4096)
    stored = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
    exchange = scram(digest, "u", password, "abc")
    bare = next(exchange).decode().removeprefix("n,,")
    first = f"r=abcdef,s={base64.b64encode(salt).decode()},i=4096"
    without, _, proof = exchange.send(first.encode()).decode().rpartition(",p=")
    message = f"{bare},{first},{without}".encode()
    signature = hmac.digest(stored, message, digest)
    key = bytes(a ^ b for a, b in zip(signature, base64.b64decode(proof), strict=True))
    assert hashlib.new(digest, key).digest() == stored
    own = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
    with pytest.raises(StopIteration):
        exchange.send(b"v=" + base64.b64encode(own))


def test_nonces_differ() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
