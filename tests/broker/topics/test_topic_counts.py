"""The work of a change of topics does not grow with the topics that there are. It is counted: calls on the event loop,
hashes of ids, commits, fsyncs, turns of the controller."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from seglog.cluster.controller import Controller
from seglog.cluster.embedded_store import EmbeddedStore
from seglog.cluster.model import broker_name
from seglog.cluster.sqlite_file import SqliteFile
from seglog.cluster.sqlite_store import SqliteStore
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.replication.replica import Replica
from seglog.storage.log.epoch_file import EpochFile
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
    epochs: int
    """Files of leader epochs that are written."""


class Counted:
    """Counts what brokers do until nothing is left to do; calls only until the act is over, because brokers also make
    some while they wait."""

    def __init__(self, running: Sequence[RunningNode], patch: pytest.MonkeyPatch) -> None:
        self._running = running
        self._found: Counter[str] = Counter()
        self._is_on = False
        self._tester = threading.get_ident()
        self._count(patch, UUID, "__hash__", "hashes")
        for store in (EmbeddedStore, SqliteStore):
            self._count(patch, store, "commit", "commits")
        self._count(patch, os, "fsync", "fsyncs")
        self._count(patch, Controller, "_act", "turns")
        for write in ("_stage", "_write"):
            self._count(patch, EpochFile, write, "epochs")

    def _count(self, patch: pytest.MonkeyPatch, owner: Any, name: str, what: str) -> None:
        real = getattr(owner, name)

        def counting(*given: Any, **named: Any) -> Any:
            if self._is_on and threading.get_ident() != self._tester:
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
        self._on_loops(lambda: sys.setprofile(called))
        try:
            yield
            self._on_loops(lambda: sys.setprofile(None))
            settle(self._running)
        finally:
            self._on_loops(lambda: sys.setprofile(None))
            self._is_on = False

    def _on_loops(self, act: Callable[[], None]) -> None:
        async def work() -> None:
            act()

        for one in self._running:
            one.on_loop(work)

    def work(self) -> Work:
        return Work(**{name: self._found[name] for name in Work._fields})


def settle(running: Sequence[RunningNode]) -> None:
    """Wait until the brokers have carried out all changes of topics, and have taken the turns that follow."""
    wait_until(lambda: all(is_settled(one, len(running)) for one in running), "brokers that have settled", 120)
    for one in running:
        one.on_loop(turns)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def is_settled(one: RunningNode, brokers: int) -> bool:
    """Whether each partition of each topic is here, led, and in sync on all brokers, and nothing else is here."""
    view, replicas = one.node.view, one.node.replicas.by_key
    wanted = {
        (topic.topic_id, number) for topic in list(view.topics.values()) for number in range(len(topic.assignment))
    }
    stored = dict(list(view.partitions.items()))
    return (
        len(view.brokers) == brokers
        and not view.deletions
        and wanted == stored.keys() == set(replicas)
        and all(len(state.isr) == brokers and state.leader >= 0 and not state.is_new for state, _ in stored.values())
    )


def settings(path: Path, kind: str) -> dict[str, str]:
    own = {"replica.lag.time.max.ms": "600000"}  # the pass over all ISRs, twice in this time, is not counted
    if kind == LONE:
        return own
    return {**own, "node.id": "1", "cluster.store": f"sqlite:{path / 'store'}", "broker.session.timeout.ms": "60000"}


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


def check_growth(few: Work, many: Work) -> None:
    """That of `MANY` topics is not more, but for what time adds on a busy machine: one for each topic would be more."""
    assert many.commits <= few.commits + BATCH, (few, many)
    assert many.fsyncs <= few.fsyncs + BATCH, (few, many)
    assert many.turns <= few.turns + BATCH, (few, many)
    assert many.hashes <= few.hashes * 1.5 + 500, (few, many)


@pytest.mark.parametrize("kind", [LONE, CLUSTER])
@pytest.mark.parametrize("which", CASES)
def test_work_does_not_grow_with_the_number_of_topics(
    which: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, names = CASES[which]
    found: list[Work] = []
    with (
        RunningNode(tmp_path / "logs", settings(tmp_path, kind)) as running,
        Wire(running.bootstrap, timeout=120) as wire,
    ):
        counted = Counted([running], monkeypatch)
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
            settle([running])
            with counted.counting():
                act(wire, chosen)
            found.append(counted.work())
    few, many = found
    check_growth(few, many)
    if kind == LONE:  # a member of a cluster also makes calls while it waits
        assert many.calls <= few.calls * 1.2 + 1_000, found


@pytest.mark.parametrize("kind", [LONE, CLUSTER])
def test_a_request_costs_a_few_commits_however_many_topics_it_has(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = {"create": create, "grow": grow, "delete": delete}
    with (
        RunningNode(tmp_path / "logs", settings(tmp_path, kind)) as running,
        Wire(running.bootstrap, timeout=120) as wire,
    ):
        counted = Counted([running], monkeypatch)
        found: dict[str, list[Work]] = {name: [] for name in acts}
        for count in (1, 80):
            names = [f"t_{count}.{number}" for number in range(count)]
            for name, act in acts.items():
                settle([running])
                with counted.counting():
                    act(wire, names)
                found[name].append(counted.work())
    for name, (one, many) in found.items():
        assert many.commits <= one.commits + 20, (name, one, many)  # of 80, if each topic had one
        assert many.turns <= one.turns + 20, (name, one, many)
        if kind == LONE:
            assert many.fsyncs <= one.fsyncs + 20, (name, one, many)


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


def lose(path: Path, running: Sequence[RunningNode]) -> None:
    """The store ends the session of the last broker, as that of one that hangs. It comes back in a new epoch."""
    lost = len(running)
    before = running[0].node.view.brokers[lost].epoch
    with closing(sqlite3.connect(path / "store")) as db:
        ((session,),) = db.execute("SELECT session FROM entries WHERE name = ?", (broker_name(lost),)).fetchall()
    store = SqliteFile(str(path / "store"))
    store.connect()
    store.disconnect([session])

    def is_back(one: RunningNode) -> bool:
        broker = one.node.view.brokers.get(lost)
        return broker is not None and broker.epoch > before

    wait_until(lambda: all(map(is_back, running)), "the lost broker to come back", 120)


def test_work_of_three_brokers_is_that_of_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change costs the same beside few topics and many, and no epoch of a new partition waits for the disk. A broker
    that is lost costs as much for each of its partitions, and no more commits."""
    found: dict[str, list[Work]] = {"create": [], "grow": [], "delete": [], "lose": []}
    with three(tmp_path) as running, Wire(running[0].bootstrap, timeout=120) as wire:
        counted = Counted(running, monkeypatch)
        acts = {"create": create, "grow": grow, "delete": delete, "lose": lambda *_: lose(tmp_path, running)}
        for act in acts.values():  # a broker imports and reads some things with the first such request
            act(wire, ["first"])
            settle(running)
        there = 0
        for number, count in enumerate((FEW, MANY)):
            create(wire, [f"other.{index}" for index in range(there, count)])
            there = count
            for name, act in acts.items():
                settle(running)
                with counted.counting():
                    act(wire, [f"new.{number}.{index}" for index in range(BATCH)])
                found[name].append(counted.work())
    assert not any(work.epochs for name in ("create", "grow", "delete") for work in found[name]), found
    for name, (few, many) in found.items():
        if name == "lose":
            few = Work(*(count * MANY // FEW for count in few))._replace(commits=few.commits, turns=few.turns)
        check_growth(few, many)


def test_followers_ask_only_for_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many topics, one more does not make a broker name all partitions that it follows."""
    asked = [0]
    """For each action."""
    real = Replica.ask

    def ask(replica: Replica, *given: Any) -> Any:
        asked[-1] += 1
        return real(replica, *given)

    with three(tmp_path) as running, Wire(running[0].bootstrap, timeout=120) as wire:
        create(wire, [f"other-{number}" for number in range(MANY)])
        settle(running)
        monkeypatch.setattr(Replica, "ask", ask)
        for name in ("first", "new"):  # new sessions may follow the many topics
            for act in (create, grow, delete):
                asked.append(0)
                act(wire, [name])
                settle(running)
        asked.append(0)  # brokers that stop give their partitions to others
    assert all(count < MANY / 3 for count in asked[4:7]), asked
