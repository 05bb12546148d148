"""Tools over directories, ours and a real Kafka's: the facts of the commands, in pages, and nothing is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.mcp.answers import MOST_CHARACTERS
from seglog.mcp.tools import TOOLS
from tests.cli.run import Run, run_here
from tests.console.scene import MEGABYTE, SCRIPT
from tests.mcp.agent import Agent, start

pytestmark = pytest.mark.xdist_group("mcp")
_FLIGHTS: Final = {"topic": "flights", "partition": 0}


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def _rows(agent: Agent, name: str, rows: str, **values: object) -> Iterator[dict[str, Any]]:
    """Of all answers, each of which says where the next one begins."""
    following: int | None = 0
    continued = "offset" if rows == "records" else "first"
    while following is not None:
        text = agent.text(name, **{**values, continued: following})
        assert len(text) <= MOST_CHARACTERS
        found = json.loads(text)
        yield from found[rows]
        following = found["next"]


def test_what_needs_no_brokers_is_offered_and_only_reads(agent: Agent) -> None:
    tools = agent.tools()
    assert set(tools) == {name for name, tool in TOOLS.items() if "disk" in tool.needs}
    for tool in tools.values():
        assert tool.annotations is not None
        assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (True, False)
        assert tool.input_schema["additionalProperties"] is False
        for name, schema in tool.input_schema["properties"].items():
            assert schema["description"], f"{tool.name}: {name}"
            assert name not in tool.input_schema["required"] or "default" not in schema
        assert "from" not in tool.input_schema["properties"]
    instructions = agent.started.instructions
    assert instructions is not None
    assert str(MOST_CHARACTERS) in instructions


def test_every_tool_reads_every_partition_and_leaves_every_byte(agent: Agent, directories: list[Path]) -> None:
    def state() -> dict[str, object]:
        every = [one for path in directories for one in (path, *path.rglob("*"))]
        return {str(one): (one.stat().st_mtime_ns, one.is_file() and one.read_bytes()) for one in every}

    before = state()
    places = list(_rows(agent, "partitions", "partitions"))
    assert {(one["topic"], one["partition"]) for one in places} >= {("flights", 0), ("hostile", 0), ("rolled", 0)}
    for topic in sorted({one["topic"] for one in places}):
        assert agent.ask("explain", topic=topic, group="golden")["partitions"]
        assert agent.ask("du", topic=topic, by="partition", keys=True)["partitions"]
    for one in places:
        place = {"topic": one["topic"], "partition": one["partition"]}
        bounds = agent.ask("partition", **place)
        assert agent.ask("verify", **place)["isDamaged"] is False
        agent.ask("explain", **place, offset=bounds["start"])
        if bounds["end"] > bounds["start"]:
            agent.ask("find", **place, offset=bounds["start"])
            agent.ask("records", **place, offset=bounds["start"], count=1)
    assert state() == before


def test_records_of_all_pages_are_those_of_the_log(agent: Agent) -> None:
    found = list(_rows(agent, "records", "records", **_FLIGHTS, count=200, bytes=4096))
    end = agent.ask("partition", **_FLIGHTS)["end"]
    assert [one["offset"] for one in found] == list(range(end))
    last = agent.ask("records", **_FLIGHTS, count=3)
    assert ([one["offset"] for one in last["records"]], last["next"]) == ([end - 3, end - 2, end - 1], None)
    middle = found[1000]["timestamp"]
    by_time = agent.ask("records", **_FLIGHTS, time=str(middle), count=1)["records"]
    assert by_time == [next(one for one in found if one["timestamp"] >= middle)]
    after = agent.ask("records", **_FLIGHTS, time=str(2**50))
    assert (after["records"], after["next"]) == ([], None)
    origins = [one["offset"] for one in _rows(agent, "records", "records", **_FLIGHTS, path="to=ORD")]
    ours = [one["offset"] for one in found if not one["isControl"] and '"to": "ORD"' in one["value"]]
    assert origins == ours


def test_hostile_records_are_visible_text(agent: Agent) -> None:
    text = agent.text("records", topic="hostile", partition=0, offset=0, bytes=16_384)
    assert all(one.isprintable() for one in text)
    rows = json.loads(text)["records"]
    assert (rows[0]["key"], rows[0]["headers"]) == (SCRIPT, [[SCRIPT, SCRIPT]])
    assert "\\u202eevil\\u202c" in text
    assert rows[2]["value"] == {"base64": "//4AYmluYXJ5"}
    assert (len(rows[4]["value"]), rows[4]["valueSize"]) == (16_384, MEGABYTE + 3)
    assert len(agent.text("find", topic="hostile", partition=0, offset=4)) <= MOST_CHARACTERS


def test_the_documents_are_those_of_the_commands(agent: Agent, directories: list[Path], run: Run) -> None:
    partition = directories[0] / "flights-0"
    (printed,) = run("find", partition, "--offset", "100", "--json").objects
    assert agent.ask("find", **_FLIGHTS, offset=100) == {**printed, "next": None}
    (printed,) = run("verify", partition, "--json").objects
    verified = agent.ask("verify", **_FLIGHTS)
    assert {name: verified[name] for name in printed} == printed
    (printed,) = run("du", *directories, "--json").objects
    assert agent.ask("du")["all"]["size"] == printed["total"]["size"]
    named = {one["topic"]: one["size"] for one in printed["topics"]}
    rows = list(_rows(agent, "du", "topics", count=3))
    assert {one["topic"]: one["size"] for one in rows} == named
    assert [one["size"] for one in rows] == sorted(named.values(), reverse=True)
    rolled = directories[2] / "rolled-0"
    (printed,) = run("explain", rolled, "--json").objects
    explained = agent.ask("explain", topic="rolled", partition=0)
    assert [one["rule"] for one in explained["segments"]] == [
        one["rule"] for one in printed["partitions"][0]["segments"]
    ]
    assert [one["rule"] for one in explained["statements"]] == [
        one["rule"] for one in printed["partitions"][0]["statements"]
    ]
    whole = agent.ask("explain", topic="rolled")["partitions"][0]
    assert (whole["segments"], whole["logEndOffset"]) == (len(explained["segments"]), explained["logEndOffset"])


def test_the_picture_of_a_partition_comes_in_pages(agent: Agent) -> None:
    whole = agent.ask("partition", **_FLIGHTS)
    pages = list(_rows(agent, "partition", "segments", **_FLIGHTS, count=2))
    assert pages == whole["segments"]
    assert len(pages) > 2
    assert {one["root"]: one["lag"] > 0 for one in whole["replicas"]} == {0: False, 1: True}
    other = agent.ask("partition", **_FLIGHTS, root=1)
    assert (other["root"], other["end"]) == (1, whole["replicas"][1]["end"])


def test_a_log_of_kafka_has_topics_and_the_reason_of_a_lag(agent: Agent) -> None:
    topics = {one["topic"]: one["isInternal"] for one in _rows(agent, "topics", "topics", count=7)}
    assert (topics["flights"], topics["__consumer_offsets"]) == (False, True)
    assert [one["topic"] for one in agent.ask("topics", filter="ROLLED")["topics"]] == [
        "rolled",
        "rolled-by-time",
        "txn-rolled",
    ]
    told = agent.ask("explain", topic="flights", partition=0, group="none")["statements"]
    assert told[-1]["text"] == "group none has no committed offset of it"
    readable = [one for one in told if one["about"] == "transactions"]
    assert readable


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("records", {"partition": 0}, "topic is missing"),
        ("records", {"topic": "flights", "partition": "x"}, "partition must be of type integer"),
        ("records", {"topic": "flights", "partition": True}, "partition must be of type integer"),
        ("records", {"topic": "none", "partition": 0}, "none-0 is in none of the directories"),
        (
            "records",
            {"topic": "../etc\n\u202e", "partition": 0},
            "../etc\\u000a\\u202e-0 is in none of the directories",
        ),
        ("records", {**_FLIGHTS, "count": 201}, "count must be between 1 and 200, not 201"),
        ("records", {**_FLIGHTS, "bytes": 10**6}, "bytes must be between 1 and 16384"),
        ("records", {**_FLIGHTS, "offset": 1, "time": "-1h"}, "offset and time exclude each other"),
        ("records", {**_FLIGHTS, "time": "soon"}, "'soon' is not a time"),
        ("records", {**_FLIGHTS, "from": "brokers"}, "there is no 'from'"),
        ("records", {**_FLIGHTS, "root": 9}, "flights-0 is not in log directory 9"),
        ("records", {"topic": "t" * 3000, "partition": 0}, "topic is longer than"),
        ("find", _FLIGHTS, "either offset or time"),
        ("find", {**_FLIGHTS, "offset": 10**9}, "is not in the log"),
        ("explain", {"topic": "none"}, "topic none is in none of the directories"),
        ("explain", {"topic": "flights", "partition": 7}, "flights-7 is in none of the directories"),
        ("explain", {"topic": "flights", "at": "tomorrow"}, "at must be milliseconds since 1970"),
        ("du", {"topic": "none"}, "no partition of topic none is there"),
        ("du", {"by": "key"}, "by must be one of topic, partition, not 'key'"),
        ("topics", {"more": 1}, "there is no 'more'; there are filter, first, count"),
    ],
)
def test_wrong_calls_get_one_sentence(agent: Agent, name: str, values: dict[str, object], reason: str) -> None:
    text = agent.refused(name, **values)
    assert reason in text
    assert text.isprintable()


def test_damage_is_told_and_not_mended(directories: list[Path], tmp_path: Path) -> None:
    log = "00000000000000000000.log"
    copy = tmp_path / "flights-0"
    shutil.copytree(directories[0] / "flights-0", copy)
    data = bytearray((copy / log).read_bytes())
    data[100] ^= 0xFF  # in the first batch
    (copy / log).write_bytes(data)
    with start(str(copy)) as agent:
        found = agent.ask("verify", **_FLIGHTS)
        assert (found["isDamaged"], found["findings"][0]["file"]) == (True, str(copy / log))
        cut = agent.ask("records", **_FLIGHTS, offset=0)
        assert (cut["records"], log in cut["damage"] or "CRC" in cut["damage"]) == ([], True)
        assert cut["next"] is None
        assert agent.ask("explain", **_FLIGHTS)["statements"]
    assert (copy / log).read_bytes() == data


def test_the_page_names_every_tool_and_limit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()
    rows = [line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")]
    assert rows == list(TOOLS)
    assert f"{MOST_CHARACTERS:,} characters" in page
    assert f"{TOOLS['records'].parameters['bytes'].most:,} with `bytes`" in page
    for name, noun in (("records", "records"), ("groups", "groups"), ("explain", "explained partitions")):
        assert f"{TOOLS[name].parameters['count'].most} {noun}" in page
