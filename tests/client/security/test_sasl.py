"""Messages of mechanisms that are not SCRAM."""

from __future__ import annotations

import pytest

from seglog.client.security.sasl import oauth_bearer, plain
from seglog.core.errors import InvalidConfigError


def test_plain_has_name_and_password_behind_nul() -> None:
    assert next(plain("älice", "p w")) == "\0älice\0p w".encode()
    with pytest.raises(InvalidConfigError, match="NUL") as raised:
        next(plain("alice", "ge\0heim"))
    assert "heim" not in str(raised.value)


def test_a_token_goes_with_its_extensions() -> None:
    exchange = oauth_bearer("a.b", {"logicalCluster": "lkc"})
    assert next(exchange) == b"n,,\x01auth=Bearer a.b\x01logicalCluster=lkc\x01\x01"
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_a_token_that_is_refused_has_a_last_word() -> None:
    exchange = oauth_bearer("a.b", {})
    assert next(exchange) == b"n,,\x01auth=Bearer a.b\x01\x01"
    assert exchange.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(ValueError, match="invalid_token"):
        exchange.send(b"")
