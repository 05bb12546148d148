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
