"""Who may use the console: tokens, cookies, hosts and origins, over real HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pytest

from seglog.console.access import Access
from seglog.console.api import OPERATIONS
from seglog.net.http import HttpRequest
from tests.console.asking import TOKEN, Asked, Started

pytestmark = pytest.mark.xdist_group("console")
_BEARER = {"Authorization": f"Bearer {TOKEN}"}


def test_an_address_opens_the_console_once_and_leaves_no_token(started: Started) -> None:
    asked = started.asked
    path = started.url.partition(str(asked.port))[2]
    first = asked.send("GET", path)
    assert (first.status, first.headers["location"]) == (303, "/")
    cookie, *attributes = first.headers["set-cookie"].split("; ")
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert path.partition("=")[2] not in cookie
    assert asked.send("GET", "/", {"Cookie": cookie}).status == 200
    assert asked.send("GET", "/api/about", {"Cookie": cookie}).status == 200
    second = asked.send("GET", path)
    assert (second.status, "set-cookie" in second.headers) == (403, False)
    following = started.next_url()
    assert following != started.url
    assert asked.send("GET", following.partition(str(asked.port))[2]).status == 303
    started.next_url()


@pytest.mark.parametrize("path", ["/", "/main.js", "/api/about", "/api/openapi.json", "/api/records", "/none"])
def test_nothing_is_answered_without_a_session(asked: Asked, path: str) -> None:
    wrong = {"Cookie": f"seglog-console-{asked.port}=wrong"}
    for headers in ({}, wrong, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        assert asked.send("GET", path, headers).status == 401
        assert asked.send("POST", path, headers, b"{}").status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", "127.0.0.1.nip.io:{port}"]
)
def test_another_host_name_is_refused_even_with_the_token(asked: Asked, host: str) -> None:
    answer = asked.send("GET", "/api/about", {**_BEARER, "Host": host.format(port=asked.port)})
    assert (answer.status, answer.document) == (403, {"error": "the request names another host"})


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_the_names_of_loopback_are_ours(asked: Asked, host: str) -> None:
    assert asked.send("GET", "/api/about", {**_BEARER, "Host": host.format(port=asked.port)}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_foreign_origin_is_refused(asked: Asked, method: str, headers: Mapping[str, str]) -> None:
    given = {name: value.format(port=asked.port) for name, value in headers.items()}
    assert asked.send(method, "/api/about", {**_BEARER, **given}, b"{}").status == 403


def test_every_answer_has_the_headers_that_protect_a_page(asked: Asked) -> None:
    for method, path, headers in (
        ("GET", "/", _BEARER),
        ("GET", "/main.js", _BEARER),
        ("GET", "/api/about", _BEARER),
        ("GET", "/api/about", {}),
        ("GET", "/api/about", {"Host": "evil.example"}),
        ("PUT", "/", _BEARER),
    ):
        found = asked.send(method, path, headers).headers
        policy = found["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert found["referrer-policy"] == "no-referrer"
        assert found["x-content-type-options"] == "nosniff"
        assert found["cache-control"] == "no-store"


def _request(headers: Mapping[str, str]) -> HttpRequest:
    return HttpRequest("POST", "/api/produce", headers, b"{}")


def test_a_change_needs_our_own_origin_or_a_program() -> None:
    numbers = count()
    access = Access(lambda: f"secret-{next(numbers)}", bearer=TOKEN)
    access.listens_on(80, ["localhost"])
    given = access.spend(access.token)
    assert given is not None
    cookie = {"cookie": given.partition(";")[0]}
    assert access.refusal(_request(cookie), changes=False) is None
    assert access.refusal(_request(cookie), changes=True) is not None
    assert access.refusal(_request({**cookie, "origin": "http://localhost"}), changes=True) is None
    assert access.refusal(_request({**cookie, "origin": "http://localhost:81"}), changes=True) is not None
    assert access.refusal(_request({"authorization": f"Bearer {TOKEN}"}), changes=True) is None
    assert Access(lambda: "x").refusal(_request({"authorization": "Bearer "}), changes=True) is not None


def test_a_console_without_write_changes_nothing(asked: Asked) -> None:
    for (method, path), operation in OPERATIONS.items():
        if operation.changes:
            answer = asked.send(method, path, {**_BEARER, "Content-Type": "application/json"}, b"{}")
            assert (answer.status, answer.document["error"]) == (403, "the console is read-only: start it with --write")
