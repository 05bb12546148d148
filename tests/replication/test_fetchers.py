"""`Fetchers`: which leaders are followed, and for which replicas."""

from __future__ import annotations

import asyncio
from typing import cast
from uuid import UUID

from seglog.cluster.model import BrokerRegistration
from seglog.replication.fetchers import Fetchers
from seglog.replication.replica import Replica

TOPIC = UUID(int=1)


class Followed:
    """A replica, as far as `Fetchers` see it."""

    leader = 1


class Reader:
    """Puts down what it is to follow."""

    def __init__(self) -> None:
        self.followed: list[object] = []

    def follow(self, replica: Replica) -> None:
        self.followed.append(replica)

    def unfollow(self, _: tuple[UUID, int]) -> None:
        raise AssertionError

    async def run(self) -> None:
        await asyncio.Event().wait()


def test_a_replica_whose_leader_was_not_registered_is_followed_with_the_next() -> None:
    """Its state may come before the registration of its leader, and both before the news of brokers."""
    assert asyncio.run(_followed()) == [[0, 1]]


async def _followed() -> list[list[int]]:
    """By fetcher, which of two replicas it follows."""
    brokers: dict[int, BrokerRegistration] = {}
    readers: list[Reader] = []

    def make(_: BrokerRegistration) -> Reader:
        readers.append(Reader())
        return readers[-1]

    fetchers = Fetchers(lambda: brokers, make)
    early, late = (cast(Replica, Followed()) for _ in range(2))
    fetchers.follow((TOPIC, 0), early)
    brokers[1] = BrokerRegistration(node_id=1, epoch=5, kept_since=5)
    fetchers.follow((TOPIC, 1), late)
    fetchers.brokers_changed()
    await fetchers.close()
    return [[0 if one is early else 1 for one in reader.followed] for reader in readers]


def test_all_are_followed_in_the_next_life_of_their_leader() -> None:
    """Including those without a new state, if another partition is seen before the broker is."""
    assert asyncio.run(_followed_anew()) == [3, 3]


async def _followed_anew() -> list[int]:
    """By fetcher, how many of three replicas it follows."""
    brokers = {1: BrokerRegistration(node_id=1, epoch=5, kept_since=5)}
    readers: list[Reader] = []

    def make(_: BrokerRegistration) -> Reader:
        readers.append(Reader())
        return readers[-1]

    fetchers = Fetchers(lambda: brokers, make)
    replicas = [cast(Replica, Followed()) for _ in range(3)]
    for number, replica in enumerate(replicas):
        fetchers.follow((TOPIC, number), replica)
    brokers[1] = BrokerRegistration(node_id=1, epoch=99, kept_since=99)
    fetchers.follow((TOPIC, 0), replicas[0])
    fetchers.brokers_changed()
    await fetchers.close()
    return [len(set(map(id, reader.followed))) for reader in readers]
