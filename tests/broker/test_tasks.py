"""Every long-running task of a broker is either vital, so that its end ends the broker, or replaced when it fails."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import NewTopic
from tests.kit.memory import directory_in_memory
from tests.kit.ports import free_port
from tests.kit.topics import commit, create_topics, write
from tests.kit.waiting import wait_until

KILLED: Final = "this task was killed by a test"
VITAL: Final = frozenset(
    {
        *("configuration", "controller", "disks", "groups", "history", "listener-PLAINTEXT", "membership"),
        *("metadata-store", "replicas", "strays", "transactions", "view"),
    }
)
PARTS: Final = {
    "accept-PLAINTEXT": "listener-PLAINTEXT",
    "session-check": "membership",
    "store-look": "metadata-store",
}
"""Tasks of a part of the broker, and the vital task that ends with them."""
PASSING: Final = frozenset({"offsets-topic", "store-read", "warm-up"})
"""Tasks that end by themselves."""
REPLACED: Final = frozenset({"fetcher"})


@pytest.fixture
def memory() -> Iterator[Path]:
    with directory_in_memory() as path:
        yield path


def node(path: Path, number: int = 1) -> RunningNode:
    """A broker of a cluster, in this process."""
    return RunningNode(
        path / f"{number}",
        {
            "cluster.store": f"sqlite:{path / 'store.sqlite'}",
            "node.id": f"{number}",
            "metrics.listener": f"127.0.0.1:{free_port()}",
            "broker.session.timeout.ms": "2000",
            "auto.leader.rebalance.enable": "false",
        },
    )


@contextmanager
def cluster(path: Path) -> Iterator[tuple[RunningNode, RunningNode]]:
    """Two brokers, of which the first follows the second."""
    with node(path, 1) as first, node(path, 2) as second:
        wait_until(lambda: len(first.node.view.brokers) == 2, "the brokers see each other")
        create_topics(first.bootstrap, NewTopic("t", 1, replica_assignment=[[2, 1]]))
        assert write(first.bootstrap, "t", "tea") is None
        yield first, second


def named() -> dict[str, asyncio.Task[Any]]:
    """The named tasks of this loop by their names, without the prefix, and without the number of a broker."""
    found = {}
    for task in asyncio.all_tasks():
        name = task.get_name()
        if name.startswith("seglog-"):
            found[name.removeprefix("seglog-").rstrip("0123456789").rstrip("-")] = task
    return found


def tasks(running: RunningNode) -> dict[str, asyncio.Task[Any]]:
    async def now() -> dict[str, asyncio.Task[Any]]:
        return named()

    return running.on_loop(now)


def kill(running: RunningNode, name: str) -> asyncio.Task[Any]:
    """Let the await at which a task stands raise an error, as a bug there would. Returns the task."""

    async def soon() -> asyncio.Task[Any]:
        while True:
            task: Any = named().get(name)
            waits_for: Any = None if task is None else task._fut_waiter
            while hasattr(waits_for, "get_coro"):  # of another task
                waits_for = waits_for._fut_waiter
            if waits_for is not None and not waits_for.done():
                waits_for.set_exception(RuntimeError(KILLED))
                killed: asyncio.Task[Any] = task
                return killed
            await asyncio.sleep(0)

    return running.on_loop(soon)


def test_every_task_is_known(memory: Path) -> None:
    """A new task must be vital, a part of a vital one, or replaced when it fails."""
    with cluster(memory) as (first, _):
        commit(first.bootstrap, "g", "t", 1)
        found = set(tasks(first))
        assert found >= VITAL
        assert found - VITAL - PARTS.keys() - PASSING - REPLACED == set()


@pytest.mark.parametrize("name", [*sorted(VITAL), *PARTS])
def test_broker_ends_with_each_of_its_vital_tasks(memory: Path, name: str) -> None:
    with node(memory) as running:
        kill(running, name)
        wait_until(running.node.over.is_set, f"the broker ends without {name}")
        assert KILLED in repr(running.node.failure)
        listener = running.node.metrics_address
        assert listener is not None
        with pytest.raises(urllib.error.HTTPError) as down:
            urllib.request.urlopen(f"http://{listener.host}:{listener.port}/health")
        assert KILLED in down.value.read().decode()


def test_fetcher_is_replaced(memory: Path) -> None:
    with cluster(memory) as (first, second):
        killed = kill(first, "fetcher")
        wait_until(lambda: tasks(first).get("fetcher", killed) is not killed, "another fetcher runs")
        assert write(second.bootstrap, "t", "coffee") is None
        assert not first.node.over.is_set()
