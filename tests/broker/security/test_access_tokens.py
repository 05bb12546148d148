"""Access tokens that are right, and each way in which one may be wrong."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.broker.security.access_tokens import (
    ALGORITHMS,
    AccessToken,
    KeySet,
    TokenRefusedError,
    TokenRules,
    access_token,
    signed_claims,
    token_header,
    unsecured_claims,
)
from seglog.broker.security.oauth_bearer import FirstMessage
from tests.cases import case
from tests.kit.token_issuer import AUDIENCE, ISSUER, TokenIssuer, new_key, part, unsecured_token

RULES = TokenRules(frozenset({AUDIENCE, "other"}), ISSUER, "sub", "scope", 30)
OURS = TokenIssuer(one=new_key(), two=new_key("RS256"))
KEYS = KeySet.parse(json.dumps(OURS.jwks()).encode())


def verified(token: str, keys: KeySet = KEYS, rules: TokenRules = RULES) -> AccessToken:
    header = token_header(token)
    return access_token(signed_claims(token, keys.fitting(header)), rules, time.time())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_with_a_public_key(algorithm: str) -> None:
    issuer = TokenIssuer(one=new_key(algorithm))
    keys = KeySet.parse(json.dumps(issuer.jwks()).encode())
    assert verified(issuer.token("ann", algorithm=algorithm), keys).user == "ann"
    with pytest.raises(TokenRefusedError, match="signature"):
        verified(TokenIssuer(one=new_key(algorithm)).token(algorithm=algorithm), keys)


def test_the_end_of_a_token_is_that_of_its_session() -> None:
    end = int(time.time()) + 50
    assert verified(OURS.token(exp=end)) == AccessToken("alice", end * 1000)


def signed_with_the_public_key(algorithm: str) -> str:
    """HMAC with a public key as its secret, which a verifier that believes the header would accept."""
    pem = OURS.keys["two"].as_pem(private=False)
    signed = f"{part({'alg': algorithm, 'kid': 'two'})}.{part({})}"
    signature = hmac.digest(pem, signed.encode(), algorithm.replace("HS", "sha"))
    return f"{signed}.{urlsafe_b64encode(signature).decode().rstrip('=')}"


WRONG_HEADERS = [
    ("a.b", "three parts"),
    ("..", "three parts"),
    ("a.b.c.d.e", "three parts"),
    (unsecured_token(), "three parts"),
    (f"{unsecured_token()}YQ", "'none' is none of"),
    (f"{part({'alg': 'NONE'})}.e30.YQ", "'NONE' is none of"),
    (f"{part({'alg': ['ES256']})}.e30.YQ", "is none of"),
    (f"{part({})}.e30.YQ", "None is none of"),
    (f"{part({'alg': 'ES256', 'kid': 7})}.e30.YQ", "kid is not a text"),
    (f"{part([1])}.e30.YQ", "header is not a JSON object"),
    (f"{part('[' * 10_000)}.e30.YQ", "header is not a JSON object"),
    (f"{'[' * 60_000}.e30.YQ", "not a JSON object"),
    ("\u00e9.e30.YQ", "is not"),
    *((f"{part({'alg': name})}.e30.YQ", "is none of") for name in ("HS256", "HS384", "HS512", "dir", "RSA1_5")),
]


@pytest.mark.parametrize("number", range(len(WRONG_HEADERS)))
def test_a_token_whose_header_is_wrong(number: int) -> None:
    token, why = WRONG_HEADERS[number]
    with pytest.raises(TokenRefusedError, match=why):
        token_header(token)


@pytest.mark.parametrize("algorithm", ["HS256", "HS512"])
def test_a_public_key_is_no_secret(algorithm: str) -> None:
    with pytest.raises(TokenRefusedError, match="is none of"):
        verified(signed_with_the_public_key(algorithm))


@pytest.mark.parametrize(
    "change",
    [
        {"kid": "two"},  # a key of another type
        {"kid": "three"},
        {"jwk": {"kty": "EC"}},
        {"jku": "https://evil.example/jwks"},
    ],
    ids=str,
)
def test_the_header_chooses_no_key_and_no_rule(change: dict[str, Any]) -> None:
    foreign = TokenIssuer()
    if "jwk" in change:
        change = {"jwk": foreign.jwks()["keys"][0]}
    with pytest.raises(TokenRefusedError, match="signature"):
        verified(foreign.token(header=change))


@pytest.mark.parametrize("critical", [["x"], ["exp"], "x", [1]])
def test_a_critical_header_that_is_unknown_is_refused(critical: object) -> None:
    with pytest.raises(TokenRefusedError):
        verified(OURS.token(header={"crit": critical, "x": 1}))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_changed_token_is_refused(place: int) -> None:
    parts = OURS.token().split(".")
    text = parts[place]
    parts[place] = text[:-6] + ("A" if text[-6] != "A" else "B") + text[-5:]
    with pytest.raises(TokenRefusedError):
        verified(".".join(parts))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": None}, "no exp"),
        ({"iat": None}, "no iat"),
        ({"exp": 0}, "expired"),
        ({"exp": "soon"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": 1e300}, "exp is not a time"),
        ({"iat": -1}, "iat is not a time"),
        ({"iat": 1 << 39}, "before it was issued"),
        ({"nbf": 1 << 39}, "not valid yet"),
        ({"aud": None}, "audience"),
        ({"aud": "kafkas"}, "audience"),
        ({"aud": ["a", 1, None]}, "audience"),
        ({"aud": {AUDIENCE: 1}}, "audience"),
        ({"iss": None}, "issuer"),
        ({"iss": f"{ISSUER}/"}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"sub": None}, "sub is missing"),
        ({"sub": " \t"}, "sub is missing"),
        ({"sub": 7}, "sub is missing"),
        ({"scope": ["a", "a "]}, "twice"),
        ({"scope": ["a", ""]}, "scope is missing"),
        ({"scope": [1]}, "scope is missing"),
    ],
    ids=str,
)
def test_claims_that_are_refused(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(TokenRefusedError, match=why):
        verified(OURS.token(**claims))


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["x", "other"]},
        {"nbf": 1.5},
        {"sub": " alice "},
        {"scope": "a b"},
        {"scope": ["a", "b"]},
        {"scope": 7},
        {"exp": (1 << 35) + 0.5},
    ],
    ids=str,
)
def test_claims_that_are_taken(claims: dict[str, Any]) -> None:
    assert verified(OURS.token(**claims)).user == "alice"


def test_the_skew_of_clocks_counts_at_both_ends() -> None:
    claims = {"sub": "a", "iat": 100, "nbf": 100, "exp": 200, "aud": AUDIENCE, "iss": ISSUER}
    for now in (70, 100, 229.9):
        assert access_token(claims, RULES, now).user == "a"
    for now in (69.9, 230):
        with pytest.raises(TokenRefusedError):
            access_token(claims, RULES, now)


def test_nothing_is_expected_only_if_told() -> None:
    anything = RULES._replace(audiences=frozenset(), issuer="")
    assert verified(OURS.token(aud=None, iss=None), rules=anything).user == "alice"


def test_other_claims_may_name_the_user() -> None:
    rules = RULES._replace(subject_claim="email")
    assert verified(OURS.token(email="ann@example"), rules=rules).user == "ann@example"


def test_a_token_without_kid_is_tried_with_each_key_that_fits() -> None:
    issuer = TokenIssuer(a=new_key(), b=new_key(), c=new_key("RS256"))
    keys = KeySet.parse(json.dumps(issuer.jwks()).encode())
    for kid in ("a", "b"):
        assert verified(issuer.token(kid=kid, header={"kid": None}), keys).user == "alice"


@pytest.mark.filterwarnings("ignore")
def test_keys_that_must_not_verify_are_left_out() -> None:
    weak = new_key("RS256", bits=1024).as_dict(private=False)
    good = OURS.jwks(["one"])["keys"][0]
    rows = [
        weak,
        {"kty": "oct", "k": "c2VjcmV0"},
        {**good, "use": "enc"},
        {**good, "key_ops": ["sign"]},
        {**good, "x": "AAAA"},
        {"kty": ["EC"]},
        7,
    ]
    assert len(KeySet.parse(json.dumps({"keys": rows}).encode())) == 0
    assert len(KeySet.parse(json.dumps({"keys": [*rows, good]}).encode())) == 1


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"keys": {}}', b"[" * 100_000, b"\xff", b'{"keys": [%s1]}' % (b"1," * 200)]
)
def test_a_set_that_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        KeySet.parse(data)


def test_unsecured_tokens() -> None:
    assert unsecured_claims(unsecured_token("ann"))["sub"] == "ann"
    for token in (OURS.token(), f"{unsecured_token()}YQ", "a.b.", "..", ""):
        with pytest.raises(TokenRefusedError):
            unsecured_claims(token)


@given(st.text(max_size=80) | st.lists(st.text(max_size=20), min_size=3, max_size=3).map(".".join))
def test_any_text_is_refused(text: str) -> None:
    case()
    with pytest.raises(TokenRefusedError):
        verified(text)


# The client's message


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"p=x,,\x01auth=Bearer a\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01",
        b"n,a=a=b,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x01x1=y\x01\x01",
        b"n,,\x01auth=Bearer a\x01x=\x01\x01",
        b"n,,\x01auth=Bearer a\x01x=\x7f\x01\x01",
        b"\xff",
    ],
)
def test_a_message_that_is_none(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"client|decode"):
        FirstMessage.parse(message)


def test_a_message_with_everything() -> None:
    told = b"n,a=a=2Cb,\x01traceparent=00-1\x01auth=bearer  a.b-c_d~e+f/g==\x01\x01"
    assert FirstMessage.parse(told) == FirstMessage("a=2Cb", "a.b-c_d~e+f/g==", {"traceparent": "00-1"})


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    case()
    with suppress(ValueError):
        FirstMessage.parse(message)
