"""The work of a change of topics does not grow with the topics that there are. It is counted: calls on the event loop,
hashes of ids, commits, fsyncs."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from seglog.cluster.controller import Controller
from seglog.cluster.embedded_store import EmbeddedStore
from seglog.cluster.sqlite_store import SqliteStore
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.replication.replica import Replica
from tests.broker.broker_thread import RunningNode, Wire
from tests.kit.waiting import wait_until

LONE, CLUSTER = "lone", "cluster"
FEW, MANY, BATCH = 40, 240, 40
"""Topics that there are at the two counts, and those that one request changes."""


class Work(NamedTuple):
    calls: int
    hashes: int
    commits: int
    fsyncs: int
    turns: int


class Counted:
    """Counts what a broker does."""

    def __init__(self, running: RunningNode, patch: pytest.MonkeyPatch) -> None:
        self._running = running
        self._found: Counter[str] = Counter()
        self._is_on = False
        self._count(patch, UUID, "__hash__", "hashes")
        for store in (EmbeddedStore, SqliteStore):
            self._count(patch, store, "commit", "commits")
        self._count(patch, os, "fsync", "fsyncs")
        self._count(patch, Controller, "_act", "turns")

    def _count(self, patch: pytest.MonkeyPatch, owner: Any, name: str, what: str) -> None:
        real = getattr(owner, name)

        def counting(*given: Any, **named: Any) -> Any:
            if self._is_on:
                self._found[what] += 1
            return real(*given, **named)

        patch.setattr(owner, name, counting)

    @contextmanager
    def counting(self) -> Iterator[None]:
        def called(_frame: object, event: str, _given: object) -> None:
            if event == "call":
                self._found["calls"] += 1

        self._found.clear()
        self._is_on = True
        self._on_loop(lambda: sys.setprofile(called))
        try:
            yield
        finally:
            self._on_loop(lambda: sys.setprofile(None))
            self._is_on = False

    def _on_loop(self, act: Callable[[], None]) -> None:
        done = threading.Event()

        def work() -> None:
            act()
            done.set()

        self._running.loop.call_soon_threadsafe(work)
        assert done.wait(60)

    def work(self) -> Work:
        return Work(**{name: self._found[name] for name in Work._fields})


def settings(path: Path, kind: str) -> dict[str, str]:
    if kind == LONE:
        return {}
    return {"node.id": "1", "cluster.store": f"sqlite:{path / 'store'}", "broker.session.timeout.ms": "60000"}


def create(wire: Wire, names: Sequence[str]) -> None:
    topics = [{"name": name, "num_partitions": 1, "replication_factor": -1} for name in names]
    answered(wire.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=60_000).topics)


def create_each(wire: Wire, names: Sequence[str]) -> None:
    for name in names:
        create(wire, [name])


def ask_for(wire: Wire, names: Sequence[str]) -> None:
    answered(
        wire.ask(ApiKey.METADATA, topics=[{"name": name} for name in names], allow_auto_topic_creation=True).topics
    )


def grow(wire: Wire, names: Sequence[str]) -> None:
    topics = [{"name": name, "count": 2} for name in names]
    answered(wire.ask(ApiKey.CREATE_PARTITIONS, topics=topics, timeout=60_000).results)


def configure(wire: Wire, names: Sequence[str]) -> None:
    change = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    for name in names:
        resources = [{"resource_type": 2, "resource_name": name, "configs": change}]
        answered(wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=resources).responses)


def delete(wire: Wire, names: Sequence[str]) -> None:
    topics = [{"name": name, "topic_id": None} for name in names]
    answered(wire.ask(ApiKey.DELETE_TOPICS, topics=topics, timeout=60_000).responses)


def describe(wire: Wire, names: Sequence[str]) -> None:
    for name in names:
        answered(wire.ask(ApiKey.METADATA, topics=[{"name": name}]).topics)


def answered(items: Sequence[Message]) -> None:
    assert {one.error_code for one in items} == {0}, items[:3]


NEW = [f"new_{number}" for number in range(BATCH)]
THERE = [f"there.{number}" for number in range(BATCH)]
CASES = {
    "create": (create, NEW),
    "create each": (create_each, NEW[:10]),
    "ask for": (ask_for, NEW),
    "grow": (grow, THERE),
    "configure": (configure, THERE[:5]),
    "delete": (delete, THERE),
    "describe": (describe, THERE[:5]),
}


@pytest.mark.parametrize("kind", [LONE, CLUSTER])
@pytest.mark.parametrize("which", CASES)
def test_work_does_not_grow_with_the_number_of_topics(
    which: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, names = CASES[which]
    found: list[Work] = []
    with RunningNode(tmp_path / "logs", settings(tmp_path, kind)) as running, Wire(running.bootstrap) as wire:
        counted = Counted(running, monkeypatch)
        first = [f"first_{name}" for name in names]
        if names[0] not in NEW:
            create(wire, first)
        act(wire, first)  # a broker imports and reads some things with the first such request
        there = 0
        for number, count in enumerate((FEW, MANY)):
            create(wire, [f"other.{index}" for index in range(there, count)])
            there = count
            chosen = [f"{name}.{number}" for name in names]
            if names[0] not in NEW:
                create(wire, chosen)
            with counted.counting():
                act(wire, chosen)
            found.append(counted.work())
    few, many = found
    assert many.commits <= few.commits + 2, found
    assert many.fsyncs <= few.fsyncs + 4, found
    assert many.turns <= few.turns + 4, found
    assert many.hashes <= few.hashes * 1.2 + 100, found
    assert many.calls <= few.calls * 1.2 + 1_000, found


@pytest.mark.parametrize("kind", [LONE, CLUSTER])
def test_a_request_costs_a_few_commits_however_many_topics_it_has(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = {"create": create, "grow": grow, "delete": delete}
    with RunningNode(tmp_path / "logs", settings(tmp_path, kind)) as running, Wire(running.bootstrap) as wire:
        counted = Counted(running, monkeypatch)
        found: dict[str, list[Work]] = {name: [] for name in acts}
        for count in (1, 80):
            names = [f"t_{count}.{number}" for number in range(count)]
            for name, act in acts.items():
                with counted.counting():
                    act(wire, names)
                found[name].append(counted.work())
    for name, (one, many) in found.items():
        assert many.commits <= one.commits + 4, (name, one, many)
        assert many.turns <= one.turns + 20, (name, one, many)  # of 80, if each topic had one
        if kind == LONE:
            assert many.fsyncs <= one.fsyncs + 4, (name, one, many)


@contextmanager
def three(path: Path) -> Iterator[list[RunningNode]]:
    """Brokers of one cluster that know each other."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                RunningNode(
                    path / f"broker-{node}",
                    {**settings(path, CLUSTER), "node.id": str(node), "default.replication.factor": "3"},
                )
            )
            for node in (1, 2, 3)
        ]
        wait_until(lambda: all(len(one.node.view.brokers) == 3 for one in running), "brokers that know each other")
        yield running


def are_in_sync(running: Sequence[RunningNode], partitions: int) -> bool:
    """Whether each broker has this many partitions, and each of them three replicas that follow it."""

    def is_done(one: RunningNode) -> bool:
        stored = [state for state, _ in list(one.node.view.partitions.values())]
        return len(stored) == len(one.node.replicas.by_key) == partitions and all(
            len(state.isr) == 3 and not state.is_new for state in stored
        )

    return all(map(is_done, running))


def test_followers_ask_only_for_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many topics, one more does not make a broker name all partitions that it follows."""
    asked = [0]
    """For each action."""
    real, there = Replica.ask, MANY

    def ask(replica: Replica, *given: Any) -> Any:
        asked[-1] += 1
        return real(replica, *given)

    with three(tmp_path) as running, Wire(running[0].bootstrap, timeout=120) as wire:
        create(wire, [f"other-{number}" for number in range(MANY)])
        wait_until(partial(are_in_sync, running, there), "all replicas in sync", 120)
        monkeypatch.setattr(Replica, "ask", ask)
        for name in ("first", "new"):  # new sessions may follow the many topics
            for act, more in ((create, 1), (grow, 1), (delete, -2)):
                asked.append(0)
                there += more
                act(wire, [name])
                wait_until(partial(are_in_sync, running, there), "all replicas in sync", 120)
        asked.append(0)  # brokers that stop give their partitions to others
    assert all(count < MANY / 3 for count in asked[4:7]), asked
