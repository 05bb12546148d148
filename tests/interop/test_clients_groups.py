"""Groups of other people's clients: members come, die, stall and come back; commits beside a rebalance; static members.

`tests/broker/apis/test_groups_clients.py` has the newest clients in the groups that every run of the tests looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.choosing import names
from tests.clients.process import ClientProcess, wait_for
from tests.clients.servers import Server
from tests.clients.versions import CLIENTS, OTHERS
from tests.kafka.jars import CURRENT

_SESSION_MS = 3000
_PARTITIONS = 4
_EVERYTHING = pytest.mark.everything
_ALL = {**CLIENTS, **OTHERS}
_PROTOCOLS = [(name, cooperative) for name, client in _ALL.items() for cooperative in {False, client.cooperative}]
_SERVER_SIDE = [name for name, client in _ALL.items() if client.server_side]
# What `tests/broker` does not have: an old client's members.
_TELLING = [("aiokafka-0.8", False)]
_DROPPED = {
    "UNKNOWN_MEMBER_ID",
    "ILLEGAL_GENERATION",
    "CommitFailedError",
    "CommitFailedException",
    "UnknownMemberIdError",
    "IllegalGenerationError",
}


class Group:
    """One topic, one group, members of one client; a client of the newest kind produces."""

    def __init__(self, server: Server, name: str, topic: str, stack: ExitStack) -> None:
        self._server = server
        self._name = name
        self._topic = topic
        self._stack = stack
        self.other = stack.enter_context(ClientProcess("confluent", server.bootstrap))
        self.other.create(topic, _PARTITIONS)

    def join(self, **job: object) -> ClientProcess:
        member = self._stack.enter_context(ClientProcess(self._name, self._server.bootstrap))
        job = {"session_ms": _SESSION_MS, **job}
        member.begin("member", group=f"group-{self._topic}", topic=self._topic, **job)
        return member

    def produce(self, first: int, end: int) -> None:
        """Records with these offsets, in each partition."""
        numbers = [first * _PARTITIONS, end * _PARTITIONS]
        said = self.other.run("produce", topic=self._topic, numbers=numbers, partitions=_PARTITIONS)
        assert sorted(what[3] for what in said) == sorted([*range(first, end)] * _PARTITIONS)

    def committed(self) -> dict[str, int]:
        found = self.other.admin("offsets", group=f"group-{self._topic}")
        assert isinstance(found, dict)
        return found


@pytest.fixture
def group(server: Server, topic_name: str) -> Iterator[Callable[[str], Group]]:
    with ExitStack() as stack:
        yield lambda name: Group(server, name, topic_name, stack)


def _share(members: list[ClientProcess], counts: tuple[int, ...]) -> None:
    """All partitions are theirs, each has one of them, and so many has each, in whatever order."""
    wait_for(
        members,
        lambda: (
            sorted(partition for one in members for partition in one.assigned) == list(range(_PARTITIONS))
            and sorted(len(one.assigned) for one in members) == sorted(counts)
        ),
        f"{counts} partitions",
    )


def _commit(members: list[ClientProcess], offset: int) -> None:
    """They have all that there is, and of each partition one of them has committed so far: who has it now, or, if a
    member was silent for too long in between, who had it then."""
    wait_for(
        members,
        lambda: (
            sorted(partition for one in members for partition in one.assigned) == list(range(_PARTITIONS))
            and all(
                any(one.offsets("committed", partition)[-1:] == [offset] for one in members)
                for partition in range(_PARTITIONS)
            )
        ),
        f"commits of {offset}",
    )


def _has(count: int) -> Callable[[ClientProcess], bool]:
    return lambda member: len(member.assigned) == count


@pytest.mark.parametrize(
    ("name", "cooperative"),
    [pytest.param(*pair, marks=() if pair in _TELLING else _EVERYTHING) for pair in _PROTOCOLS],
)
def test_members_come_die_stall_and_come_back(group: Callable[[str], Group], name: str, cooperative: bool) -> None:
    all_ = group(name)
    all_.produce(0, 5)
    first, second = (all_.join(cooperative=cooperative) for _ in range(2))
    _share([first, second], (2, 2))
    third = all_.join(cooperative=cooperative)
    _share([first, second, third], (1, 1, 2))
    all_.produce(5, 10)
    _commit([first, second, third], 9)
    third.kill()
    _share([first, second], (2, 2))
    second.stall()
    _share([first], (_PARTITIONS,))
    all_.produce(10, 15)
    _commit([first], 14)
    # Who was away for too long does not take back what others have read since then.
    second.resume()
    _share([first, second], (2, 2))
    all_.produce(15, 20)
    _commit([first, second], 19)
    assert all_.committed() == {str(partition): 20 for partition in range(_PARTITIONS)}
    for partition in range(_PARTITIONS):
        everyone = {offset for member in (first, second, third) for offset in member.offsets("read", partition)}
        assert everyone == set(range(20))
        # What was committed is not read again but by whoever had it in hand when it was stalled.
        assert first.offsets("committed", partition) == sorted(set(first.offsets("committed", partition)))
    # All leave; a new one goes on where they had committed.
    for member in (first, second):
        member.finish("stop")
    all_.produce(20, 25)
    last = all_.join(cooperative=cooperative, session_ms=30_000)  # nobody waits for its end
    last.until(lambda one: _has(_PARTITIONS)(one) and one.has_committed(24), "what is new")
    assert all(last.offsets("read", partition) == list(range(20, 25)) for partition in range(_PARTITIONS))


@pytest.mark.parametrize("name", names("confluent", f"java-{CURRENT}", of=_SERVER_SIDE))
def test_group_changes_its_protocol_while_members_stay(group: Callable[[str], Group], name: str) -> None:
    """KIP-848: the broker assigns. A classic member joins, and has everything when the others have left."""
    all_ = group(name)
    all_.produce(0, 5)
    first, second = (all_.join(protocol="consumer") for _ in range(2))
    _share([first, second], (2, 2))
    all_.produce(5, 10)
    _commit([first, second], 9)
    classic = all_.join(session_ms=30_000)
    _share([first, second, classic], (1, 1, 2))
    second.finish("stop")
    _share([first, classic], (2, 2))
    first.finish("stop")
    _share([classic], (_PARTITIONS,))
    all_.produce(10, 15)
    _commit([classic], 14)
    third = all_.join(protocol="consumer")
    _share([classic, third], (2, 2))
    assert all_.committed() == {str(partition): 15 for partition in range(_PARTITIONS)}


@pytest.mark.parametrize("name", names("confluent-2.0", of=_ALL))
def test_commits_while_a_group_is_rebalanced(group: Callable[[str], Group], name: str) -> None:
    all_ = group(name)
    all_.produce(0, 1)
    first = all_.join(poll_ms=30_000, hold=0, session_ms=6000)  # as long as the second one takes to start
    first.until(lambda one: [what[0] for what in one.seen].count("read") == 1, "a record")
    # The second one's join waits for the first, which is between a poll and a commit: it is still its turn.
    second = all_.join(poll_ms=30_000, session_ms=6000)
    second.until(lambda one: one.seen != [], "its start")
    first.tell("go")
    first.until(lambda one: [what[0] for what in one.seen].count("committed") == 1, "a commit")
    _share([first, second], (2, 2))
    wait_for([first, second], lambda: all_.committed() == dict.fromkeys("0123", 1), "commits of all that there is")


@pytest.mark.parametrize("name", names(f"java-{CURRENT}"))
def test_a_commit_of_a_member_that_is_out(group: Callable[[str], Group], name: str) -> None:
    all_ = group(name)
    all_.produce(0, 3)
    first = all_.join(poll_ms=3000, hold=1)
    first.until(lambda one: [what[2] for what in one.seen if what[0] == "read"][-1:] == [1], "a second record")
    # The first one does not poll: when its time is over, all is the second one's.
    second = all_.join(poll_ms=3000)
    second.until(_has(_PARTITIONS), "all")
    before = len(first.seen)
    first.tell("go")
    first.until(lambda one: "not committed" in [what[0] for what in one.seen[before:]], "a commit that is refused")
    assert next(what[1] for what in first.seen[before:] if what[0] == "not committed") in _DROPPED
    # It is back at its next poll.
    _share([first, second], (2, 2))
    all_.produce(3, 5)
    _commit([first, second], 4)
    assert all_.committed() == {str(partition): 5 for partition in range(_PARTITIONS)}


@pytest.mark.parametrize("name", names(of=[name for name, client in _ALL.items() if client.static]))
def test_a_static_member_is_back_before_its_session_is_over(group: Callable[[str], Group], name: str) -> None:
    all_ = group(name)
    first, second = (all_.join(instance=instance, session_ms=20_000) for instance in ("one", "two"))
    _share([first, second], (2, 2))
    had = second.assigned
    second.kill()
    again = all_.join(instance="two", session_ms=20_000)
    again.until(_has(2), "what it had")
    assert again.assigned == had
    before = len(first.seen)
    all_.produce(0, 5)
    _commit([first, again], 4)
    assert not [what for what in first.seen[before:] if what[0] == "assigned"]
