"""Fetch as followers ask it: what waits is answered when something comes, and who asks for nothing is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from seglog.broker.requests import RequestContext
from seglog.cluster.model import Member
from seglog.net.connection import portions
from seglog.protocol import replica_fetch
from seglog.protocol.apis import ApiKey
from seglog.protocol.fetch import FetchAnswer
from seglog.protocol.replica_fetch import FetchResponse, RequestHead, WantedPartition
from seglog.replication.replica import Replica
from tests.replication.leading import BROKERS, FOLLOWER, LAG_MS, LEADER, Disk, Leader, batch, topic_id

LONG_MS = 60_000
SOON = 20.0


class Asking:
    """A follower of topic ``t``, in one session, and the leader that it asks."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.replicas: list[Replica] = []
        self.session_id = self.epoch = 0

    def lead(self, partitions: int) -> list[Replica]:
        self.replicas = self.leader.lead("t", partitions)
        return self.replicas

    def send(
        self,
        wanted: Mapping[int, int],
        *,
        forgotten: tuple[int, ...] = (),
        wait_ms: int = LONG_MS,
        min_bytes: int = 1,
        member: Member = FOLLOWER,
    ) -> Awaitable[FetchResponse]:
        """Ask for partitions from offsets on. What is waited for begins to wait when it is awaited, as in a broker."""
        head = RequestHead(wait_ms, min_bytes, 1 << 20, self.session_id, self.epoch, *member)
        key = topic_id("t").bytes
        asked = [WantedPartition(number, 0, offset, -1, 0, 1 << 20) for number, offset in wanted.items()]
        body = replica_fetch.write_request(head, {key: asked} if asked else {}, {key: forgotten} if forgotten else {})
        context = RequestContext(ApiKey.FETCH, replica_fetch.VERSION, "", "", "BROKERS")
        return self._read(self.leader.fetch(memoryview(body), 0, context))

    async def _read(self, found: FetchAnswer | Awaitable[FetchAnswer]) -> FetchResponse:
        answer = found if isinstance(found, FetchAnswer) else await found
        data = b"".join(piece for portion in portions(answer.parts, lambda: 1 << 20) for piece in portion)
        response = replica_fetch.read_response(memoryview(data))
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if response.session_id else 0
        return response

    async def ask(self, wanted: Mapping[int, int], *, forgotten: tuple[int, ...] = ()) -> FetchResponse:
        return await self.send(wanted, forgotten=forgotten, wait_ms=0)


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Asking], Awaitable[None]]], None]:
    def do(act: Callable[[Asking], Awaitable[None]]) -> None:
        async def within() -> None:
            disk = Disk(tmp_path / "leader", LEADER)
            try:
                async with asyncio.timeout(SOON):
                    await act(Asking(Leader(disk)))
            finally:
                disk.close()

        asyncio.run(within())

    return do


Run = Callable[[Callable[[Asking], Awaitable[None]]], None]


def partitions(response: FetchResponse) -> dict[int, int]:
    """How many bytes there are of each."""
    return {one.partition: len(one.records) for one in response.partitions}


@pytest.mark.parametrize("is_full", [True, False])
def test_what_comes_before_the_wait_begins_is_not_waited_for(run: Run, is_full: bool) -> None:
    """The answer is looked for when the request comes, the wait begins a turn of the loop later. What the answer names
    already, for its high watermark only, counts as well."""

    async def act(asking: Asking) -> None:
        (replica,) = asking.lead(1)
        if not is_full:
            replica.append(batch())
            assert partitions(await asking.ask({0: 0}))[0] > 0
        waiting = asking.send({0: replica.log.log_end_offset})
        replica.append(batch())
        assert partitions(await waiting)[0] > 0

    run(act)


def test_few_bytes_are_not_enough_whenever_they_come(run: Run) -> None:
    async def act(asking: Asking) -> None:
        (replica,) = asking.lead(1)
        waiting = asking.send({0: 0}, min_bytes=4_000)
        replica.append(batch(1_000))
        answer = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        replica.append(batch(1_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not answer.done()
        replica.append(batch(3_000))
        assert partitions(await answer)[0] > 5_000

    run(act)


def test_who_asks_for_a_partition_no_more_is_behind_when_it_grows(run: Run) -> None:
    """That the same broker still asks for others says nothing of it: else acks=all would wait for it for ever."""

    async def act(asking: Asking) -> None:
        replica, _ = asking.lead(2)
        asking.leader.now_ms = 0
        await asking.ask({0: 0, 1: 0})
        await asking.ask({}, forgotten=(0,))
        replica.append(batch())
        for now_ms in range(0, LAG_MS * 2, LAG_MS // 4):
            asking.leader.now_ms = now_ms
            await asking.ask({})
        proposed = replica.propose_isr(BROKERS, LAG_MS * 2)
        assert proposed is not None
        assert proposed.isr == (LEADER,)

    run(act)


def test_who_has_all_of_a_quiet_partition_stays_in_sync(run: Run) -> None:
    """It is in no request of the session, and its follower is heard of."""

    async def act(asking: Asking) -> None:
        replica, _ = asking.lead(2)
        asking.leader.now_ms = 0
        await asking.ask({0: 0, 1: 0})
        for now_ms in range(0, LAG_MS * 2, LAG_MS // 4):
            asking.leader.now_ms = now_ms
            await asking.ask({})
        assert replica.propose_isr(BROKERS, LAG_MS * 2) is None

    run(act)


def test_a_request_of_a_session_that_was_replaced_tells_nothing(run: Run) -> None:
    """Its follower has hung up and come again with a later offset; what it asked before may still wait here."""

    async def act(asking: Asking) -> None:
        (replica,) = asking.lead(1)
        await asking.ask({0: 0})
        waiting = asyncio.ensure_future(asking.send({}))
        await asyncio.sleep(0)
        replica.append(batch())
        end = replica.log.log_end_offset
        again = Asking(asking.leader)
        assert partitions(await again.ask({0: end})) == {0: 0}
        assert partitions(await waiting) == {}
        assert replica.progress is not None
        assert replica.progress.followers[FOLLOWER.node_id].end_offset == end

    run(act)


def test_only_brokers_that_are_there_have_sessions(run: Run) -> None:
    """Who makes up broker ids, or has gone, takes no memory; a broker may be known a moment after it comes."""

    async def act(asking: Asking) -> None:
        (replica,) = asking.lead(1)
        stranger = Member(99, 5)
        answer = await asking.send({0: 0}, wait_ms=0, member=stranger)
        assert answer.session_id == 0
        assert not replica.followers
        waiting = asyncio.ensure_future(asking.send({0: 0}, min_bytes=1 << 20, member=stranger))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not replica.followers
        assert (await asking.ask({0: 0})).session_id > 0
        assert len(replica.followers) == 1
        del asking.leader.brokers[FOLLOWER.node_id]
        asking.leader.brokers[99] = BROKERS[1]
        asking.epoch = 0
        assert (await asking.send({0: 0}, wait_ms=0, member=stranger)).session_id > 0
        assert len(replica.followers) == 1

    run(act)


def test_a_follower_follows_since_the_answer_that_its_request_comes_after(run: Run) -> None:
    """A request that comes now may have been sent long ago: the first of a session proves nothing."""

    async def act(asking: Asking) -> None:
        leader = asking.leader
        (replica,) = asking.lead(1)
        leader.now_ms = 100
        await asking.ask({0: 0})
        leader.now_ms = 200
        assert not replica.is_followed_since(99)
        await asking.ask({0: 0})  # sent after the answer at 100
        assert replica.is_followed_since(99)
        assert not replica.is_followed_since(100)
        leader.now_ms = 300
        await asking.ask({}, forgotten=(0,))  # it may lead by now
        assert not replica.is_followed_since(100)
        asking.session_id = asking.epoch = 0
        await asking.ask({0: 0})
        assert not replica.is_followed_since(100)

    run(act)
