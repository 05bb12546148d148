"""Other people's clients while brokers of a cluster stop, die and hand over, and while replicas move: they produce, and
read as members of a group, and are told of nothing that they do not try again by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import pytest

from seglog.client.bootstrap import parse_bootstrap
from seglog.client.cluster import ClusterAdmin
from seglog.cluster.reassignment_plan import ReplicaMove
from tests.clients.choosing import names
from tests.clients.clusters import NODES, Cluster
from tests.clients.process import ClientProcess
from tests.clients.versions import CLIENTS
from tests.kafka.jars import CURRENT
from tests.kit.waiting import wait_until

_PARTITIONS = 3
_SESSION_MS = 12_000
_RATE = 40
_EVERYTHING = pytest.mark.everything
_TOGETHER = ("aiokafka", f"java-{CURRENT}", "kafka-python")
"""`tests.cluster_run` has confluent-kafka all the time."""


class Load:
    """A topic, one client that produces to it all the time, and one that reads it as the member of a group."""

    def __init__(self, cluster: Cluster, name: str, topic: str, stack: ExitStack) -> None:
        cluster.create(topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        self.topic = topic
        self._producer = stack.enter_context(ClientProcess(name, cluster.bootstrap))
        self._member = stack.enter_context(ClientProcess(name, cluster.bootstrap))
        self._idempotent = self._producer.kind.idempotent
        self._member.begin("member", group=f"group-{topic}", topic=topic, session_ms=_SESSION_MS)
        self._producer.begin(
            "produce",
            topic=topic,
            numbers=[0, 1_000_000],
            partitions=_PARTITIONS,
            rate=_RATE,
            idempotent=self._idempotent,
            linger_ms=1,
        )

    def wait_for_more(self, count: int = _RATE // 2) -> None:
        """Wait until ``count`` further records are acknowledged, and as many are read and committed."""
        for process, word in ((self._producer, "acked"), (self._member, "committed")):
            process.until(_more(word, len(process.seen), count), f"{count} more {word}")

    def finish(self) -> None:
        """All records are acknowledged and read in order, and no client got an error."""
        said = self._producer.finish("stop")
        acked = [what for what in self._producer.seen if what[0] == "acked"]
        assert {what[0] for what in said} == {"acked"}, [what for what in said if what[0] != "acked"][:9]
        assert sorted(what[1] for what in acked) == list(range(len(acked)))
        ends = {number: max(what[3] for what in acked if what[2] == number) for number in range(_PARTITIONS)}
        if self._idempotent:
            assert sum(ends.values()) + _PARTITIONS == len(acked)
        for number, end in ends.items():
            while max(self._member.offsets("read", number), default=-1) < end:
                self._member.until(_more("committed", len(self._member.seen), 1), f"{number} up to {end}")
        words = {what[0] for what in self._member.finish("stop")}
        assert words <= {"assigned", "read", "committed"}, self._member.seen
        for number, end in ends.items():
            assert self._member.offsets("read", number) == list(range(end + 1))


def _more(word: str, start: int, count: int) -> Callable[[ClientProcess], bool]:
    return lambda process: sum(what[0] == word for what in process.seen[start:]) >= count


def _roll(cluster: Cluster, loads: list[Load]) -> None:
    for node in NODES:
        cluster.stop(node)
        for load in loads:
            load.wait_for_more()
        cluster.restart(node)
        cluster.wait_healthy()


def _kill(cluster: Cluster, loads: list[Load], topic: str) -> None:
    node = cluster.leader(topic, 0)
    cluster.kill(node)
    for load in loads:
        load.wait_for_more()
    cluster.restart(node)
    cluster.wait_healthy()


def _is_on(cluster: Cluster, topic: str, nodes: Sequence[int]) -> bool:
    return cluster.replicas(topic)[0] == list(nodes)


def _move(cluster: Cluster, loads: list[Load]) -> None:
    """The first broker leads and has partition 0 of each no more, and has it again."""
    for now, then in (((1, 2, 3), (2, 3)), ((2, 3), (1, 2, 3))):
        with ClusterAdmin(parse_bootstrap(cluster.bootstrap), 30) as admin:
            assert not admin.reassign([ReplicaMove((load.topic, 0), now, then) for load in loads])
        for load in loads:
            wait_until(partial(_is_on, cluster, load.topic, then), f"{load.topic}-0 on {then}")
            load.wait_for_more()


def test_brokers_are_restarted_and_one_is_killed(cluster: Cluster, topic_name: str) -> None:
    with ExitStack() as stack:
        loads = [Load(cluster, name, f"{topic_name}-{name}", stack) for name in _TOGETHER]
        for load in loads:
            load.wait_for_more()
        _roll(cluster, loads)
        _kill(cluster, loads, loads[0].topic)
        _move(cluster, loads)
        for load in loads:
            load.wait_for_more()
            load.finish()


@pytest.mark.parametrize("name", names(of=CLIENTS))
def test_each_client(cluster: Cluster, topic_name: str, name: str) -> None:
    with ExitStack() as stack:
        load = Load(cluster, name, topic_name, stack)
        load.wait_for_more()
        _roll(cluster, [load])
        _kill(cluster, [load], topic_name)
        _move(cluster, [load])
        load.wait_for_more()
        load.finish()
