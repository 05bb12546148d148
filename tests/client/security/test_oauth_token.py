"""Tokens of OAUTHBEARER: from an endpoint, a file, or as given; and what an endpoint may answer."""

from __future__ import annotations

import ssl
from base64 import b64encode
from pathlib import Path

import pytest

from seglog.client.security.oauth_token import TokenCache
from seglog.client.security.references import Secrets
from seglog.client.security.security_config import SecurityConfig
from seglog.core.errors import (
    AuthenticationFailedError,
    BrokerUnavailableError,
    InvalidConfigError,
    RequestFailedError,
)
from tests.client.security.token_endpoint import TokenEndpoint
from tests.kit.certificates import Authority
from tests.kit.manual_clock import ManualClock
from tests.kit.ports import free_port


def config(url: str | None = None, **options: str) -> SecurityConfig:
    return SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=url,
        sasl_oauthbearer_client_credentials_client_id=options.get("client_id"),
        sasl_oauthbearer_client_credentials_client_secret=options.get("client_secret"),
        sasl_oauthbearer_scope=options.get("scope"),
        sasl_oauthbearer_header_urlencode=options.get("encode") == "true",
    )


def token(made: SecurityConfig, cache: TokenCache | None = None, trust: str | None = None, **options: str) -> str:
    if trust is not None:
        options["ssl.truststore.location"] = trust
    return (cache or TokenCache(ManualClock())).token(options, made, Secrets(environment={"SECRET": "geheim"}))


def test_client_credentials_by_either_name() -> None:
    basic = f"Basic {b64encode(b'me:geheim').decode()}"
    with TokenEndpoint({"access_token": "a.b.c", "expires_in": 60}) as endpoint:
        by_name = config(endpoint.url, client_id="me", client_secret="${env:SECRET}", scope="a b")
        assert token(by_name) == "a.b.c"
        assert token(config(endpoint.url), clientId="me", clientSecret="geheim", scope="a b") == "a.b.c"
        assert [*endpoint.asked] == [("/token", basic, "grant_type=client_credentials&scope=a+b")] * 2


def test_credentials_are_encoded_if_the_endpoint_wants_it() -> None:
    with TokenEndpoint({"access_token": "t"}) as endpoint:
        token(config(endpoint.url, client_id="a b", client_secret="c/d", encode="true"))
        assert endpoint.asked[0].authorization == f"Basic {b64encode(b'a+b:c%2Fd').decode()}"
        assert endpoint.asked[0].form == "grant_type=client_credentials"


def test_a_token_is_kept_for_most_of_its_lifetime() -> None:
    clock = ManualClock()
    cache = TokenCache(clock)
    with TokenEndpoint({"access_token": "one", "expires_in": 100}) as endpoint:
        made = config(endpoint.url, client_id="me", client_secret="geheim")
        assert token(made, cache) == "one"
        endpoint.answer = {"access_token": "two"}
        clock.advance(79_999)
        assert token(made, cache) == "one"
        other = config(endpoint.url, client_id="me", client_secret="other")
        assert token(other, cache) == "two", "another secret, another token"
        clock.advance(1)
        assert token(made, cache) == "two"
        endpoint.answer = {"access_token": "three"}
        assert token(made, cache) == "three", "without a lifetime it is not kept"


def test_a_token_serves_until_its_end_while_the_endpoint_is_away() -> None:
    clock = ManualClock()
    cache = TokenCache(clock)
    with TokenEndpoint({"access_token": "one", "expires_in": 100}) as endpoint:
        made = config(endpoint.url, client_id="me", client_secret="geheim")
        assert token(made, cache) == "one"
        endpoint.status = 503
        clock.advance(80_000)
        with cache._lock:  # another thread waits for the endpoint
            assert token(made, cache) == "one"
        assert token(made, cache) == "one"
        endpoint.status = 401
        clock.advance(9_999)
        assert token(made, cache) == "one"  # an endpoint that does not answer is left alone for a while
        clock.advance(1)
        with pytest.raises(AuthenticationFailedError, match="HTTP 401"):  # it refuses, so no token is right
            token(made, cache)
        endpoint.status = 503
        clock.advance(10_000)
        with pytest.raises(BrokerUnavailableError, match="HTTP 503"):
            token(made, cache)


def test_tls_to_the_endpoint_is_that_of_the_login_module(authority: Authority, stranger: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("endpoint", "IP:127.0.0.1").store)
    with TokenEndpoint({"access_token": "t"}, tls=context) as endpoint:
        made = config(endpoint.url, client_id="me", client_secret="geheim")
        assert token(made, trust=str(authority.certificate)) == "t"
        with pytest.raises(AuthenticationFailedError, match=f"token endpoint {endpoint.url}: TLS: its certificate"):
            token(made, trust=str(stranger.certificate))


def test_files_and_given_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    path.write_text("x.y.z\n")
    assert token(config(f"file://{tmp_path}/a%20token")) == "x.y.z"
    assert token(config(), token="given") == "given"
    path.write_text("geheim\tgeheim")
    with pytest.raises(InvalidConfigError, match="a token is not a token") as raised:
        token(config(f"file://{path}"))
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "answer", "error", "words"),
    [
        (
            401,
            {"error": "invalid_client", "error_description": "no"},
            AuthenticationFailedError,
            ": invalid_client: no",
        ),
        (400, b"<html>", AuthenticationFailedError, "HTTP 400 Bad Request"),
        (302, b"", AuthenticationFailedError, "HTTP 302 Found"),
        (503, b"", BrokerUnavailableError, "HTTP 503"),
        (429, b"", BrokerUnavailableError, "HTTP 429"),
        (200, {}, AuthenticationFailedError, "has no access_token"),
        (200, [], AuthenticationFailedError, "has no access_token"),
        (200, b"[" * 100_000, AuthenticationFailedError, "has no access_token"),
        (200, b" " * (1 << 20) + b"{}", AuthenticationFailedError, "has no access_token"),
        (200, {"access_token": 5}, AuthenticationFailedError, "has no access_token"),
        (200, {"access_token": "a\x01b"}, InvalidConfigError, "is not a token"),
    ],
)
def test_answers_that_are_no_token(status: int, answer: object, error: type[Exception], words: str) -> None:
    with TokenEndpoint(answer, status=status) as endpoint:
        with pytest.raises(error, match=words) as raised:
            token(config(endpoint.url, client_id="me", client_secret="geheim"))
        assert "geheim" not in str(raised.value)
        assert endpoint.url in str(raised.value)


def test_an_endpoint_that_is_not_there() -> None:
    with pytest.raises(BrokerUnavailableError, match="Connection refused") as raised:
        token(config(f"http://127.0.0.1:{free_port()}/", client_id="me", client_secret="geheim"))
    assert isinstance(raised.value, RequestFailedError)


def test_missing_properties_are_named() -> None:
    with pytest.raises(InvalidConfigError, match=r"token\.endpoint\.url is missing"):
        token(config())
    with pytest.raises(InvalidConfigError, match=r"client.secret is missing: set it, or clientSecret"):
        token(config("http://a/", client_id="me"))
