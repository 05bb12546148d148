import pytest

from seglog.coordinators.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)
from seglog.core.errors import InvalidRequestError
from tests.coordinators.shard_driver import subscription

OWNED = bytes.fromhex("00000001000174000000020000000000000001")
"""Partitions 0 and 1 of topic t."""
V3 = bytes.fromhex("000300000001000174ffffffff") + OWNED + bytes.fromhex("00000007000172")


def test_subscriptions_of_all_versions() -> None:
    assert decode_subscription(subscription("t", "u")) == Subscription(0, frozenset({"t", "u"}), {}, None)
    expected = Subscription(3, frozenset({"t"}), {"t": frozenset({0, 1})}, "r")
    assert decode_subscription(V3) == expected
    assert decode_subscription(b"\0\x09" + V3[2:] + b"more") == expected  # a later version: as the latest known
    assert version_of(b"\0\x09") == 3


def test_assignments_are_read_as_they_were_written() -> None:
    partitions = {"t": frozenset({0, 300}), "u": frozenset({1})}
    assert decode_assignment(encode_assignment(partitions, 1)) == Assignment(partitions, b"")


@pytest.mark.parametrize("end", range(len(V3)))
def test_truncated_subscription_is_refused(end: int) -> None:
    with pytest.raises(InvalidRequestError):
        decode_subscription(V3[:end])


def test_negative_version_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        version_of(b"\xff\xff")
