"""Transactions of other people's clients: committed and aborted ones, and groups whose offsets they commit."""

from __future__ import annotations

import pytest

from tests.clients.choosing import names
from tests.clients.process import ClientProcess
from tests.clients.servers import Server
from tests.clients.versions import CLIENTS, OTHERS
from tests.ecosystem.tails import Tail

_PARTITIONS = 3
_RECORDS = 300
_SESSION_MS = 6000
_CLIENTS = {name: client for name, client in {**CLIENTS, **OTHERS}.items() if client.idempotent}
_TELLING = [("java-3.9.1", "classic"), ("kafka-python", "classic")]
_PROTOCOLS = [
    pytest.param(name, protocol, marks=() if (name, protocol) in _TELLING else pytest.mark.everything)
    for name, client in _CLIENTS.items()
    for protocol in ("classic", *(["consumer"] if client.server_side else []))
]


@pytest.fixture
def topics(server: Server, topic_name: str) -> tuple[str, str]:
    """A topic with numbers, and an empty one."""
    source, target = f"{topic_name}-source", f"{topic_name}-target"
    with ClientProcess("confluent", server.bootstrap) as other:
        for topic in (source, target):
            other.create(topic, _PARTITIONS)
        said = other.run("produce", topic=source, numbers=[0, _RECORDS], partitions=_PARTITIONS)
    assert [what[0] for what in said] == ["acked"] * _RECORDS
    return source, target


@pytest.mark.parametrize("name", names("java-3.9.1", of=_CLIENTS))
def test_transactions_are_committed_and_aborted(server: Server, name: str, topics: tuple[str, str]) -> None:
    _, target = topics
    commits = [True, False, True, True]
    with ClientProcess(name, server.bootstrap) as client:
        said = client.run("transact", topic=target, commits=commits)
    assert said == [["ended", number] for number in range(len(commits))]
    with Tail(server.bootstrap, target) as tail:
        tail.read_until(lambda records: len(records) >= sum(commits))
        assert [one.value for one in tail.read_on(0.5)] == ["0", "2", "3"]


@pytest.mark.parametrize(("name", "protocol"), _PROTOCOLS)
def test_a_relay_that_is_killed_in_a_transaction_copies_everything_once(
    server: Server, name: str, protocol: str, topics: tuple[str, str]
) -> None:
    source, target = topics
    job: dict[str, object] = {"group": f"{name}-{protocol}-{source}", "source": source, "target": target}
    job |= {"protocol": protocol} if protocol == "consumer" else {"session_ms": _SESSION_MS}
    with ClientProcess(name, server.bootstrap) as first:
        first.begin("relay", **job, hold=1)
        first.until(lambda one: one.seen[-1:] == [["held"]], "a transaction that is open")
        first.kill()
    with ClientProcess(name, server.bootstrap) as second:
        second.begin("relay", **job)
        second.until(lambda one: _relayed(first) + _relayed(one) >= _RECORDS, "all records")
        assert second.finish("stop") == []
    with Tail(server.bootstrap, target) as tail:
        tail.read_until(lambda records: len(records) >= _RECORDS)
        found = [int(one.value) for one in tail.read_on(0.5)]
    for partition in range(_PARTITIONS):
        wanted = list(range(partition, _RECORDS, _PARTITIONS))
        assert [number for number in found if number % _PARTITIONS == partition] == wanted


def _relayed(client: ClientProcess) -> int:
    return sum(what[1] for what in client.seen if what[0] == "relayed")
