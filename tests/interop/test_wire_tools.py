"""The tools on the wire with a real Kafka and with our broker: the same commands, the same answers."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest

from tests.broker.broker_thread import RunningNode
from tests.cli.run import Ran, run_here
from tests.kafka import KafkaNode
from tests.kit.waiting import SECONDS

_TIMES = re.compile(r"\b1[0-9]{12}\b")
_IDS = re.compile(r"(?<=id )[A-Za-z0-9_-]{22}")


class Both(NamedTuple):
    """The results of one command, run against Kafka and against seglog."""

    kafka: Ran
    ours: Ran

    def same(self, part: Callable[[Ran], Any] | None = None) -> Ran:
        """Ours, if it, or a part of it, is Kafka's but for times and ids."""
        look = part or _plain
        assert look(self.ours) == look(self.kafka)
        return self.ours


def _plain(ran: Ran) -> tuple[int, str, str]:
    return ran.code, _IDS.sub("ID", _TIMES.sub("TIME", ran.text)), ran.err


def eventually_same(
    both: Callable[..., Both], *arguments: str, part: Callable[[Ran], Any] = _plain, wanted: Any = None
) -> None:
    """Of what Kafka's controller has done, and said so, before its broker knows it; ``wanted``: what both say then."""
    deadline = monotonic() + SECONDS
    ran = both(*arguments)
    while part(ran.kafka) != part(ran.ours) and monotonic() < deadline:
        ran = both(*arguments)
    found = part(ran.same(part))
    assert wanted in (None, found)


def create(both: Callable[..., Both], topic: str, *arguments: str) -> None:
    """A topic that can be used."""
    assert both("topics", "create", topic, *arguments).same().code == 0
    eventually_same(both, "topics", "describe", topic, "--sizes")


def _of_the_topic(ran: Ran) -> list[Any]:
    return [one for one in ran.objects[0]["configs"] if one["source"] == "topic"]


def _retention(ran: Ran) -> list[str]:
    return [one["value"] for one in ran.objects[0]["configs"] if one["name"] == "log.retention.ms"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    # Some records have times of long ago: nobody looks for what may go.
    with RunningNode(tmp_path_factory.mktemp("ours") / "log", {"log.retention.ms": "-1"}) as running:
        yield running


@pytest.fixture
def both(
    capfdbinary: pytest.CaptureFixture[bytes], kafka: KafkaNode, ours: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Both]:
    run = run_here(capfdbinary)

    def one(bootstrap: str, arguments: tuple[str, ...], stdin: bytes) -> Ran:
        with monkeypatch.context() as patch:
            patch.setenv("SEGLOG_BOOTSTRAP", bootstrap)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            return run(*arguments)

    def act(*arguments: str, stdin: bytes = b"") -> Both:
        return Both(one(kafka.bootstrap, arguments, stdin), one(ours.bootstrap, arguments, stdin))

    return act


def test_topics_and_configs(both: Callable[..., Both], topic_name: str) -> None:
    create(both, topic_name, "-p", "3", "-r", "1", "-c", "retention.ms=5000,cleanup.policy=compact")
    both("topics", "create", topic_name).same()
    both("topics", "create", "bad/name").same()
    both("topics", "describe", "no-such").same()
    both("topics", "alter", topic_name, "-p", "5").same()
    assert both("topics", "alter", topic_name, "-p", "2").same().code == 2
    eventually_same(both, "topics", "describe", topic_name)
    both("configs", "alter", "-t", topic_name, "--add-config", "segment.ms=9", "--delete-config", "retention.ms").same()
    # Kafka has min.insync.replicas set for all brokers since KIP-966.
    eventually_same(both, "configs", "describe", "-t", topic_name, "--json", part=_of_the_topic)
    everything = both("configs", "describe", "-t", topic_name, "--all", "--json")
    theirs, mine = ({one["name"] for one in ran.objects[0]["configs"]} for ran in everything)
    assert theirs <= mine
    both("configs", "alter", "--broker-defaults", "--add-config", "log.retention.ms=4444444").same()
    eventually_same(both, "configs", "describe", "--broker-defaults", "--json", part=_retention, wanted=["4444444"])
    both("configs", "alter", "--broker-defaults", "--delete-config", "log.retention.ms").same()
    both("topics", "delete", topic_name).same()
    both("topics", "delete", topic_name).same()


def test_produce_consume_and_offsets(both: Callable[..., Both], topic_name: str) -> None:
    create(both, topic_name, "-p", "3")
    lines = b"".join(b"key-%d:value %d\n" % (number % 7, number) for number in range(50))
    assert both("produce", topic_name, "-K", ":", "-H", "a=b", "-z", "lz4", stdin=lines).same().code == 0
    records = b"".join(b'{"key":"aw==","timestamp":%d}\n' % (1000 * number) for number in range(1, 6))
    assert both("produce", topic_name, "--records", "-p", "1", stdin=records).same().code == 0
    both("offsets", topic_name).same()
    for time in ("earliest", "latest", "3000"):
        both("offsets", topic_name, "--time", time, "--json").same()
    for partition in ("0", "1", "2"):
        arguments = ("-p", partition, "-e", "-f", r"%t %p %o %k=%s %S %h\n")
        assert both("consume", topic_name, *arguments).same().code == 0
    consumed = both("consume", topic_name, "-e", "--json", "--isolation-level", "read_committed")
    theirs, mine = ([_object(line) for line in sorted(ran.lines)] for ran in consumed)
    assert sorted(theirs, key=str) == sorted(mine, key=str)
    assert both("consume", topic_name, "-p", "0", "-o", "1000").same().code == 2
    assert both("consume", "no-such").same().code == 2


def _object(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)
    return {name: value for name, value in found.items() if name != "timestamp"}


def test_groups(both: Callable[..., Both], topic_name: str, tmp_path: Path) -> None:
    group = f"group-{topic_name}"
    create(both, topic_name, "-p", "2")
    both("produce", topic_name, "--partitioner", "round-robin", stdin=b"".join(b"%d\n" % n for n in range(20))).same()
    for ran in both("consume", topic_name, "-g", group, "-e"):
        assert sorted(map(int, ran.lines)) == list(range(20))
    both("groups", "describe", group).same()
    both("groups", "describe", group, "--members").same()
    for mode in (
        ("--to-earliest",),
        ("--to-offset", "3"),
        ("--shift-by", "2"),
        ("--to-datetime", "2100-01-01T00:00:00Z"),
        ("--by-duration", "P1D"),
        ("--to-current",),
    ):
        assert both("groups", "reset-offsets", group, "-t", topic_name, *mode, "--execute").same().code == 0
    (tmp_path / "plan.csv").write_text(f"{topic_name},1,4\n")
    both("groups", "reset-offsets", group, "--from-file", str(tmp_path / "plan.csv"), "--execute").same()
    both("groups", "describe", group, "--json").same()
    both("groups", "delete-offsets", group, "-t", f"{topic_name}:1").same()
    both("groups", "describe", group).same()
    both("groups", "delete", group).same()
    both("groups", "delete", group).same()
    both("groups", "describe", group).same()
