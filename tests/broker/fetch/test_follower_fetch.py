"""Fetch as followers ask it: what waits is answered when something comes, and who asks for nothing is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from struct import Struct
from typing import Final
from uuid import UUID

import pytest

from seglog.cluster.model import Member
from seglog.net.connection import Reply, portions
from seglog.protocol import replica_fetch
from seglog.protocol.apis import ApiKey
from seglog.protocol.replica_fetch import FetchResponse, RequestHead, WantedPartition
from seglog.replication.replica import Replica
from tests.kit.virtual_cluster import CLIENT, LAG_MS, VirtualCluster
from tests.replication.logs import batch

LONG_MS = 60_000
FOLLOWER: Final = Member(2, 20)
_HEADER: Final = Struct(">hhih")
_ANSWER_HEADER: Final = 9


class Asking:
    """Broker 2, which the test plays: it follows topic ``t`` of broker 1, in one session."""

    def __init__(self, cluster: VirtualCluster, topic_id: UUID) -> None:
        self.cluster = cluster
        self.leader = cluster[1]
        self.topic_id = topic_id
        self.session_id = self.epoch = 0

    def again(self) -> Asking:
        """The same broker with another session."""
        return Asking(self.cluster, self.topic_id)

    def lead(self, partitions: int) -> list[Replica]:
        self.topic_id = self.cluster.create("t", partitions, leader=1)
        replicas = [self.leader.replica(self.topic_id, number) for number in range(partitions)]
        self.cluster.until(lambda: all(one.leads for one in replicas))
        return replicas

    def append(self, replica: Replica, size: int = 100) -> None:
        self.leader.call(lambda: replica.append(batch(size)))

    def send(
        self,
        wanted: Mapping[int, int],
        *,
        forgotten: tuple[int, ...] = (),
        wait_ms: int = LONG_MS,
        min_bytes: int = 1,
        member: Member = FOLLOWER,
        after: Callable[[], object] = lambda: None,
    ) -> Reply | Awaitable[Reply]:
        """Ask for partitions from offsets on. What is waited for begins to wait with `wait`, as in a broker."""
        head = RequestHead(wait_ms, min_bytes, 1 << 20, self.session_id, self.epoch, *member)
        key = self.topic_id.bytes
        asked = [WantedPartition(number, 0, offset, -1, 0, 1 << 20) for number, offset in wanted.items()]
        body = replica_fetch.write_request(head, {key: asked} if asked else {}, {key: forgotten} if forgotten else {})
        header = _HEADER.pack(ApiKey.FETCH, replica_fetch.VERSION, 0, len(CLIENT)) + CLIENT.encode() + b"\0"
        return self.leader.handle(header + body, after)

    def wait(self, found: Reply | Awaitable[Reply]) -> asyncio.Task[Reply]:
        async def waited() -> Reply:
            return await found if isinstance(found, Awaitable) else found

        return self.leader.process.create_task(waited())

    def read(self, found: Reply | Awaitable[Reply]) -> FetchResponse:
        return self.answered(self.wait(found))

    def answered(self, task: asyncio.Task[Reply]) -> FetchResponse:
        reply = self.cluster.wait(task)
        assert isinstance(reply, list)
        data = b"".join(piece for portion in portions(reply, lambda: 1 << 20) for piece in portion)
        response = replica_fetch.read_response(memoryview(data)[_ANSWER_HEADER:])
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if response.session_id else 0
        return response

    def ask(
        self, wanted: Mapping[int, int], *, forgotten: tuple[int, ...] = (), member: Member = FOLLOWER
    ) -> FetchResponse:
        return self.read(self.send(wanted, forgotten=forgotten, wait_ms=0, member=member))


@pytest.fixture
def asking() -> Iterator[Asking]:
    with VirtualCluster(1) as cluster:
        cluster.register(FOLLOWER)
        cluster.ask(cluster[1], ApiKey.API_VERSIONS, 0, b"")
        yield Asking(cluster, UUID(int=0))


def partitions(response: FetchResponse) -> dict[int, int]:
    """How many bytes there are of each."""
    return {one.partition: len(one.records) for one in response.partitions}


@pytest.mark.parametrize("is_full", [True, False])
def test_records_appended_before_the_wait_begins_are_returned_at_once(asking: Asking, is_full: bool) -> None:
    """The answer is looked for when the request comes, the wait begins a turn of the loop later. What the answer names
    already, for its high watermark only, counts as well."""
    (replica,) = asking.lead(1)
    if not is_full:
        asking.append(replica)
        assert partitions(asking.ask({0: 0}))[0] > 0
    begun = asking.cluster.now_ms
    waiting = asking.send({0: replica.log.log_end_offset})
    asking.append(replica)
    assert partitions(asking.read(waiting))[0] > 0
    assert asking.cluster.now_ms - begun < LONG_MS


def test_few_bytes_are_not_enough_whenever_they_come(asking: Asking) -> None:
    (replica,) = asking.lead(1)
    waiting = asking.send({0: 0}, min_bytes=4_000)
    asking.append(replica, 1_000)
    answer = asking.wait(waiting)
    asking.cluster.run(1.0)
    asking.append(replica, 1_000)
    asking.cluster.run(1.0)
    assert not answer.done()
    asking.append(replica, 3_000)
    assert partitions(asking.answered(answer))[0] > 5_000


def test_follower_that_forgets_a_partition_leaves_its_isr(asking: Asking) -> None:
    """A broker that still fetches other partitions does not count for this one, or acks=all would wait for it
    forever."""
    replica, _ = asking.lead(2)
    asking.ask({0: 0, 1: 0})
    asking.ask({}, forgotten=(0,))
    asking.append(replica)
    for _ in range(12):
        asking.cluster.run(LAG_MS / 4000)
        asking.ask({})
    assert asking.cluster.state(asking.topic_id).isr_nodes == (1,)


def test_follower_of_an_idle_partition_stays_in_sync(asking: Asking) -> None:
    """It is in no request of the session, and its follower is heard of."""
    asking.lead(2)
    asking.ask({0: 0, 1: 0})
    for _ in range(12):
        asking.cluster.run(LAG_MS / 4000)
        asking.ask({})
    assert asking.cluster.state(asking.topic_id).isr_nodes == (1, 2)


def test_a_request_of_a_session_that_was_replaced_tells_nothing(asking: Asking) -> None:
    """Its follower has hung up and come again with a later offset; what it asked before may still wait here."""
    (replica,) = asking.lead(1)
    asking.ask({0: 0})
    waiting = asking.wait(asking.send({}))
    asking.cluster.run(0.1)
    again, end = asking.again(), replica.log.log_end_offset + 1
    replacing = again.send({0: end}, wait_ms=0, after=lambda: replica.append(batch()))
    assert partitions(again.read(replacing)) == {0: 0}
    assert partitions(asking.answered(waiting)) == {}
    assert replica.progress is not None
    assert replica.progress.followers[FOLLOWER.node_id].end_offset == end


def test_only_brokers_that_are_there_have_sessions(asking: Asking) -> None:
    """Unknown and departed brokers take no memory. A broker may become known a moment after its first fetch."""
    (replica,) = asking.lead(1)
    stranger = Member(99, 50)
    assert asking.ask({0: 0}, member=stranger).session_id == 0
    assert not replica.followers
    waiting = asking.wait(asking.send({0: 0}, min_bytes=1 << 20, member=stranger))
    asking.cluster.run(0.1)
    waiting.cancel()
    asking.cluster.until(waiting.done)
    assert not replica.followers
    assert asking.ask({0: 0}).session_id > 0
    assert len(replica.followers) == 1
    asking.cluster.unregister(FOLLOWER)
    asking.cluster.register(stranger)
    assert asking.again().ask({0: 0}, member=stranger).session_id > 0
    assert len(replica.followers) == 1


def test_a_follower_follows_since_the_answer_that_its_request_comes_after(asking: Asking) -> None:
    """A request that comes now may have been sent long ago: the first of a session proves nothing."""
    cluster = asking.cluster
    (replica,) = asking.lead(1)
    asking.ask({0: 0})
    answered = cluster.now_ms
    cluster.run(0.1)
    assert not replica.is_followed_since(answered - 1)
    asking.ask({0: 0})  # sent after that answer
    assert replica.is_followed_since(answered - 1)
    assert not replica.is_followed_since(answered)
    cluster.run(0.1)
    asking.ask({}, forgotten=(0,))  # it may lead by now
    assert not replica.is_followed_since(answered)
    asking.again().ask({0: 0})
    assert not replica.is_followed_since(answered)
