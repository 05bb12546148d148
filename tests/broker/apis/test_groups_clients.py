"""Groups of third-party clients, each member a process: they share partitions, one is killed, the group continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer

from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import AdminClient, NewTopic
from tests.clients.process import ClientProcess

SECONDS = 60.0
PARTITIONS = 4
SETTINGS = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "500"}
SESSION_MS = 5000
"""The group waits this long for a member that was killed; a busy machine may keep a live one silent as long."""
STATIC_SESSION_MS = 30_000
"""A static member must return before its session ends, however long its process takes to start."""
CLIENTS = ("confluent", "kafka-python", "aiokafka")
KINDS = [*((kind, "eager") for kind in CLIENTS), ("confluent", "cooperative")]


class Members:
    """Starts members of one group; ends those that are left over."""

    def __init__(self, running: RunningNode, group: str, topic: str) -> None:
        self.running = running
        self.group = group
        self.topic = topic
        self._cooperative = group.startswith("cooperative")
        self._all: list[ClientProcess] = []

    def start(self, kind: str, **job: object) -> ClientProcess:
        member = ClientProcess(kind, self.running.bootstrap, locked_only=True)
        self._all.append(member)
        job = {"session_ms": SESSION_MS, "cooperative": self._cooperative, **job}
        member.begin("member", group=self.group, topic=self.topic, **job)
        return member

    def produce(self, first: int, last: int) -> None:
        """Records with these offsets in each partition."""
        producer = Producer({"log_level": 0, "bootstrap.servers": self.running.bootstrap})
        for offset in range(first, last):
            for partition in range(PARTITIONS):
                producer.produce(self.topic, b"%d" % offset, partition=partition)
        assert producer.flush(SECONDS) == 0

    def end(self) -> None:
        for member in self._all:
            member.end()


def committed(member: ClientProcess) -> dict[int, int]:
    """The last commit of each partition."""
    return {said[1]: said[2] for said in member.seen if said[0] == "committed"}


@pytest.fixture
def members(start: Callable[..., RunningNode], request: pytest.FixtureRequest) -> Iterator[Members]:
    _, protocol = getattr(request, "param", ("", "eager"))
    running = start(SETTINGS)
    admin = AdminClient({"log_level": 0, "bootstrap.servers": running.bootstrap})
    for done in admin.create_topics([NewTopic("t", PARTITIONS, 1)]).values():
        done.result(SECONDS)
    members = Members(running, f"{protocol}-group", "t")
    try:
        yield members
    finally:
        members.end()


@pytest.mark.parametrize(("members", "kind"), [(pair, pair[0]) for pair in KINDS], indirect=["members"])
def test_a_group_goes_on_where_one_that_was_killed_had_committed(members: Members, kind: str) -> None:
    members.produce(0, 20)
    first, second = members.start(kind), members.start(kind)
    for member in (first, second):
        member.until(lambda one: len(one.assigned) == PARTITIONS // 2)
    members.produce(20, 40)
    for member in (first, second):
        member.until(lambda one: one.has_committed(39))
    assert sorted(first.assigned + second.assigned) == list(range(PARTITIONS))
    second.kill()
    members.produce(40, 60)
    first.until(lambda one: committed(one) == dict.fromkeys(range(PARTITIONS), 59))
    assert first.assigned == list(range(PARTITIONS))
    for partition in second.assigned:
        # Nothing was lost, and nothing that was committed is read again.
        assert first.offsets("read", partition)[-20:] == list(range(40, 60))
        assert 39 not in first.offsets("read", partition)
    first.finish("stop")


def test_clients_of_all_kinds_share(members: Members) -> None:
    members.produce(0, 10)
    all_ = [members.start(kind) for kind in CLIENTS]
    for member in all_:
        member.until(lambda one: 1 <= len(one.assigned) <= 2)
    members.produce(10, 20)
    for member in all_:
        member.until(lambda one: one.has_committed(19))
    left = all_[0]
    for member in all_[1:]:
        member.finish("stop")
    left.until(lambda one: one.assigned == list(range(PARTITIONS)))
    left.finish("stop")


@pytest.mark.parametrize("kind", ["confluent", "kafka-python"])
def test_a_static_member_that_is_restarted_has_what_it_had(members: Members, kind: str) -> None:
    first, second = (members.start(kind, instance=name, session_ms=STATIC_SESSION_MS) for name in ("one", "two"))
    for member in (first, second):
        member.until(lambda one: len(one.assigned) == PARTITIONS // 2)
    second.kill()
    again = members.start(kind, instance="two", session_ms=STATIC_SESSION_MS)
    again.until(lambda one: len(one.assigned) == PARTITIONS // 2)
    assert again.assigned == second.assigned
    before = len(first.seen)
    members.produce(0, 5)
    for member in (first, again):
        member.until(lambda one: one.has_committed(4))
    assert not [said for said in first.seen[before:] if said[0] == "assigned"]


def test_a_group_goes_on_after_the_brokers_restart(members: Members) -> None:
    members.produce(0, 10)
    before = members.start("confluent")
    before.until(lambda one: committed(one) == dict.fromkeys(range(PARTITIONS), 9))
    before.finish("stop")
    members.running.stop()
    members.running.start()
    members.produce(10, 20)
    after = members.start("confluent")
    after.until(lambda one: committed(one) == dict.fromkeys(range(PARTITIONS), 19))
    assert all(after.offsets("read", partition) == list(range(10, 20)) for partition in range(PARTITIONS))


# Groups that are neither classic nor of consumers, which are missing


def test_librdkafkas_members_of_share_groups_give_up_at_once(members: Members) -> None:
    """If a broker does not advertise these APIs, librdkafka silently waits forever."""
    sharer: Any = ShareConsumer({"log_level": 0, "bootstrap.servers": members.running.bootstrap, "group.id": "other"})
    sharer.subscribe(["t"])
    with pytest.raises(KafkaException, match="ShareGroupHeartbeat fatal error: Broker: API version not supported"):
        sharer.poll(SECONDS)
