"""Records of the disk through the API: filters against a plain loop, bounds, hostile contents, and wrong requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from seglog.console.api import OPERATIONS, openapi
from seglog.console.records import MOST_BYTES, SHOWN_BYTES, Filter
from tests.console.asking import Asked
from tests.console.scene import MEGABYTE, RIGHT_TO_LEFT, SCRIPT

pytestmark = pytest.mark.xdist_group("console")
_FLIGHTS = {"topic": "flights", "partition": 1}


def _all(asked: Asked, **values: object) -> list[dict[str, Any]]:
    """The records of all pages."""
    found: list[dict[str, Any]] = []
    offset: int | None = 0
    while offset is not None:
        page = asked.ask("records", **{**_FLIGHTS, "offset": offset, "count": 500, **values})
        assert page["damage"] is None
        found += page["records"]
        offset = page["next"]
    return found


def _value(record: dict[str, Any]) -> dict[str, Any]:
    return json.loads(record["value"]) if isinstance(record["value"], str) and not record["isControl"] else {}


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ({"key": "N4"}, lambda one: isinstance(one["key"], str) and "N4" in one["key"]),
        ({"value": '"to": "ORD"'}, lambda one: '"to": "ORD"' in str(one["value"])),
        ({"path": "to=ORD"}, lambda one: _value(one).get("to") == "ORD"),
        ({"path": "$.crew.3"}, lambda one: len(_value(one).get("crew", [])) > 3),
        ({"path": "delay=100"}, lambda one: _value(one).get("delay") == 100),
        ({"header": "source"}, lambda one: bool(one["headers"])),
        ({"header": "source=demo", "path": "from=JFK"}, lambda one: one["headers"] and _value(one)["from"] == "JFK"),
        ({"header": "source=other"}, lambda _: False),
    ],
)
def test_filters_find_what_a_loop_finds(
    asked: Asked, values: dict[str, object], holds: Callable[[dict[str, Any]], object]
) -> None:
    everything = _all(asked)
    assert [one["offset"] for one in everything] == list(range(len(everything)))
    assert _all(asked, **values) == [one for one in everything if holds(one)]


def test_times_bound_both_ends(asked: Asked) -> None:
    everything = _all(asked)
    low, high = everything[40]["timestamp"], everything[900]["timestamp"]
    found = _all(asked, since=low, until=high)
    assert found == [one for one in everything if low <= one["timestamp"] <= high]
    wrong = asked.answer("records", **_FLIGHTS, since=high, until=low)
    assert (wrong.status, "is after until" in wrong.document["error"]) == (400, True)


def test_without_an_offset_the_newest_are_shown(asked: Asked) -> None:
    page = asked.ask("records", **_FLIGHTS, count=5)
    assert [one["offset"] for one in page["records"]] == list(range(page["end"] - 5, page["end"]))
    assert page["next"] is None
    assert page["commands"]["find"].endswith(f"--offset {page['end'] - 5} --explain")


def test_hostile_records_are_text_and_large_ones_are_cut(asked: Asked) -> None:
    rows = asked.ask("records", topic="hostile", partition=0, offset=0)["records"]
    assert (rows[0]["key"], rows[0]["headers"]) == (SCRIPT, [[SCRIPT, SCRIPT]])
    assert rows[1]["value"] == RIGHT_TO_LEFT
    assert rows[2]["value"] == {"base64": "//4AYmluYXJ5"}
    assert (rows[3]["value"], rows[3]["valueSize"]) == (None, -1)
    assert (len(rows[4]["value"]), rows[4]["valueSize"]) == (SHOWN_BYTES, MEGABYTE + 3)
    (alone,) = asked.ask("records", topic="hostile", partition=0, offset=4, count=1)["records"]
    assert len(alone["value"]) == MOST_BYTES


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("a", b'{"a": null}', True),
        ("a=null", b'{"a": null}', True),
        ("a.0.b=x", b'{"a": [{"b": "x"}]}', True),
        ("$", b"[]", True),
        ("0=1", b"[1]", True),
        ("a", b"[1]", False),
        ("a.b", b'{"a": 1}', False),
        ("a", b"not json", False),
        ("a", None, False),
        ("a", b"\xff", False),
        ("a", b"[" * 100_000, False),
    ],
)
def test_paths_into_values(path: str, value: bytes | None, expected: bool) -> None:
    assert Filter(json_path=path).matches(0, None, value, ()) is expected


@pytest.mark.parametrize(
    ("name", "values", "status", "reason"),
    [
        ("partition", {}, 400, "topic is missing"),
        ("partition", {"topic": "flights", "partition": "x"}, 400, "partition must be a number, not 'x'"),
        ("partition", {"topic": "flights", "partition": -1}, 400, "partition must be between 0 and"),
        ("partition", {"topic": "none", "partition": 0}, 404, "none-0 is in none of the directories"),
        ("partition", {"topic": "../etc", "partition": 0}, 404, "is in none of the directories"),
        ("partition", {**_FLIGHTS, "root": 9}, 404, "is not in log directory 9"),
        ("partitions", {"count": 501}, 400, "count must be between 1 and 500, not 501"),
        ("partitions", {"other": 1}, 400, "there is no 'other'"),
        ("partitions", {"filter": "x" * 3000}, 400, "filter is longer than"),
        ("lookup", _FLIGHTS, 400, "either offset or time"),
        ("lookup", {**_FLIGHTS, "time": "soon"}, 400, "'soon' is not a time"),
        ("lookup", {**_FLIGHTS, "offset": 10**9}, 404, "is not in the log"),
        ("bytes", {**_FLIGHTS, "base": 0, "of": "all"}, 400, "of must be one of batch"),
        ("bytes", {**_FLIGHTS, "base": 5}, 404, "has no segment 00000000000000000005"),
        ("bytes", {**_FLIGHTS, "base": 0, "of": "txnindex"}, 404, "No such file"),
        ("index", {**_FLIGHTS, "base": 5}, 404, "No such file"),
        ("cluster", {}, 409, "without brokers"),
        ("group", {"group": "g"}, 409, "without brokers"),
        ("records", {**_FLIGHTS, "from": "brokers"}, 409, "without brokers"),
        ("none", {}, 404, "no such operation"),
    ],
)
def test_wrong_requests_get_one_sentence(
    asked: Asked, name: str, values: dict[str, object], status: int, reason: str
) -> None:
    answer = asked.answer(name, **values)
    assert (answer.status, reason in answer.document["error"]) == (status, True), answer.document


def test_the_openapi_document_describes_every_operation(asked: Asked) -> None:
    document = asked.ask("openapi.json")
    assert document == openapi()
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == set(OPERATIONS)
    parameters = {one["name"]: one for one in document["paths"]["/api/batches"]["get"]["parameters"]}
    assert parameters["topic"]["required"]
    assert parameters["count"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 500, "default": 200}
