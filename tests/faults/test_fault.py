"""Faults as values: what they match, and as JSON."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from seglog.core.error_codes import ErrorCode
from seglog.faults.fault import Fault, FaultError, Request, error_code, fault_from_json


def request(**changed: Any) -> Request:
    return Request(
        api="Produce",
        version=9,
        client_id="c",
        connection=1,
        correlation_id=7,
        topics=frozenset({("t", 0), ("t", 1), ("u", None)}),
        groups=frozenset({"g"}),
        transactional_ids=frozenset({"x"}),
        body=SimpleNamespace(acks=1),
    )._replace(**changed)


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ({}, True),
        ({"api": "produce"}, True),
        ({"api": "Fetch"}, False),
        ({"topic": "t"}, True),
        ({"topic": "v"}, False),
        ({"partition": 1}, True),
        ({"topic": "t", "partition": 2}, False),
        ({"topic": "u", "partition": 2}, True),
        ({"group": "g", "transactional_id": "x", "client_id": "c", "connection": 1, "version": 9}, True),
        ({"group": "h"}, False),
        ({"transactional_id": "y"}, False),
        ({"client_id": "d"}, False),
        ({"connection": 2}, False),
        ({"version": 8}, False),
        ({"where": lambda one: one.body.acks == 1}, True),
        ({"where": lambda one: one.body.acks == 0}, False),
    ],
)
def test_matches_every_field_that_is_given(fields: dict[str, Any], *, matches: bool) -> None:
    assert Fault(effect="lose", **fields).matches(request()) == matches


def test_a_request_without_topics_never_matches_a_topic() -> None:
    assert not Fault(effect="lose", partition=0).matches(request(topics=frozenset()))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(effect="error", api="Produce", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, partition=0),
        Fault(effect="cut", size=7, then="reset", times=None, probability=0.5, seed=1),
        Fault(effect="delay", seconds=0.5, applied=False, topic="t", nth=3),
    ],
)
def test_comes_back_from_json(fault: Fault) -> None:
    assert fault_from_json(fault.to_json()) == fault


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({}, "needs its effect"),
        ({"effect": "explode"}, "no effect 'explode'"),
        ({"effect": "lose", "api": "Nothing"}, "no API 'Nothing'"),
        ({"effect": "lose", "colour": 1}, "no field 'colour'"),
        ({"effect": "lose", "where": "x"}, "no field 'where'"),
        ({"effect": "lose", "partition": True}, "partition cannot be True"),
        ({"effect": "lose", "nth": "1"}, "nth cannot be '1'"),
        ({"effect": "lose", "nth": None}, "nth cannot be None"),
        ({"effect": "lose", "nth": 0}, "nth is 0"),
        ({"effect": "lose", "times": 0}, "times is 0"),
        ({"effect": "lose", "probability": 1.5}, "probability is 1.5"),
        ({"effect": "lose", "then": "sulk"}, "cannot end with 'sulk'"),
        ({"effect": "error"}, "needs its code"),
        ({"effect": "error", "error": "NO_SUCH_ERROR"}, "no error 'NO_SUCH_ERROR'"),
        ({"effect": "delay", "seconds": -1}, "not negative"),
        ({"effect": "reorder", "count": 1}, "only one order"),
        ({"effect": "cut", "applied": False}, "use lose"),
    ],
)
def test_says_why_a_document_is_no_fault(document: dict[str, Any], why: str) -> None:
    with pytest.raises(FaultError, match=why):
        fault_from_json(document)


def test_a_function_does_not_leave_its_process() -> None:
    with pytest.raises(FaultError, match="in a thread"):
        Fault(effect="lose", where=lambda _: True).to_json()


def test_errors_have_names_and_numbers() -> None:
    assert error_code("not_leader_or_follower") == error_code(6) == error_code(ErrorCode.NOT_LEADER_OR_FOLLOWER) == 6
    with pytest.raises(FaultError, match="no error 9999"):
        error_code(9999)
