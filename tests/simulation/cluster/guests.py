"""Clients of a simulated cluster that may do something today and not tomorrow, and the administrator who says so.

P27: a broker goes by the ACLs and passwords of the store as they are, or were at most since its start, and never by
earlier ones than before; in the end all go by the last ones. No record of a write that was denied is in a log.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from seglog.broker.security.acls import Entry, Operation, Pattern, Permission, ResourceType
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from tests.broker.security.acl_node import everything
from tests.kit.virtual_broker import PORT
from tests.simulation.cluster.clients import EPOCH_MS, Client
from tests.simulation.cluster.contents import TOPIC
from tests.simulation.principals import (
    ALICE,
    BOB,
    GROUPS,
    MALLORY,
    TOPIC_DENIED,
    Login,
    Permissions,
    Verdict,
    draw_change,
    draw_forbidden,
    draw_grants,
    draw_login,
    draw_probe,
    log_in_if,
    login_of,
    must_be_refused,
)
from tests.simulation.wire import Channel, LostError, connect

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.host import Host

PATTERN: Final = Pattern(ResourceType.TOPIC, TOPIC)
_STABLE: Final = {PATTERN: (Operation.READ, Operation.WRITE), GROUPS: (Operation.READ,)}
"""What other clients may always do."""
_PATIENCE: Final = 2.0


def first_acls(cluster: Cluster) -> Mapping[Pattern, set[Entry]]:
    """Those that are in the store before the first broker starts."""
    rng = cluster.faults.of_principals
    return {
        pattern: {
            *(Entry("User:client", "*", operation, Permission.ALLOW) for operation in operations),
            *(acl.entry for acl in draw_grants(rng, pattern)),
        }
        for pattern, operations in _STABLE.items()
    }


class _Inquirer(Client):
    """Does one thing after the other."""

    def __init__(self, cluster: Cluster, name: str, permissions: Permissions) -> None:
        super().__init__(cluster, name)
        self.permissions = permissions
        self.loop.create_task(self._live())

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self.rng.random() * 0.7)
            if self.is_on:
                with suppress(LostError):
                    await self.act()

    @abstractmethod
    def act(self) -> Coroutine[Any, Any, None]: ...


class Administrator(_Inquirer):
    """A super user: creates and removes ACLs and passwords. A change whose answer is lost may be made later."""

    def __init__(self, cluster: Cluster, permissions: Permissions) -> None:
        super().__init__(cluster, "admin", permissions)
        self.login = login_of("admin")

    async def act(self) -> None:
        host = self.any_host()
        await self.connected(host.node_id)
        if self.rng.random() < 0.2:
            since = self.permissions.seen(host.host)
            self.permissions.check_listed(host.host, since, await self._listed(host))
            return
        change = draw_change(self.rng, self.permissions, (PATTERN, GROUPS))
        since_state = change.past.last
        self.world.note("change", change.key.name, since_state)
        answer = await self.ask(host.node_id, change.key, patience=_PATIENCE, **change.contents)
        change.answered(host.host, since_state, answer)

    async def _listed(self, host: Host) -> Message:
        return await self.ask(host.node_id, ApiKey.DESCRIBE_ACLS, patience=_PATIENCE, **everything())

    async def agree(self) -> None:
        """Ends when every broker goes by the last ACLs."""
        for host in self.cluster.hosts.values():
            is_last = False
            while not is_last:
                with suppress(LostError):
                    is_last = self.permissions.is_last(await self._listed(host))
                await asyncio.sleep(0.2)


class Guest(_Inquirer):
    """Writes, reads and asks whatever it may, or may not."""

    def __init__(self, cluster: Cluster, user: str, permissions: Permissions) -> None:
        super().__init__(cluster, user, permissions)
        self.user = user
        self._logins: dict[int, Login] = {}
        """Bob's."""
        if user != BOB:
            self.login = login_of(user)

    async def connected(self, node_id: int) -> Channel:
        """If the session is about to end, it authenticates again."""
        channel = self._channels.get(node_id)
        if channel is None or not channel.is_open or self.world.now < channel.renew_at:
            return await super().connected(node_id)
        await self.begin_session(node_id, channel)
        return channel

    async def log_in(self, node_id: int, channel: Channel) -> float | None:
        if self.user != BOB:
            return await super().log_in(node_id, channel)
        if channel.renew_at == math.inf:
            self._logins[node_id] = draw_login(self.rng, self.permissions)
        login, broker = self._logins[node_id], f"n{node_id}"
        return await log_in_if(self.permissions, broker, channel, login, self.answer)

    async def act(self) -> None:
        number, what = self.number(), self.rng.random()
        host = self.target(number) if what < 0.6 else self.any_host()
        await self.connected(host.node_id)
        since = self.permissions.seen(host.host)
        if what < 0.35:
            await self._write(host, since, number)
        elif what < 0.6:
            await self._read(host, since, number)
        elif what < 0.85:
            places = [TopicPartition(TOPIC, one) for one in range(self.cluster.scenario.partitions)]
            known = () if host.node is None or not host.answers else host.node.topics.by_name
            probe = draw_probe(self.rng, {TOPIC: PATTERN}, places, tuple(known))
            answer = await self.ask(host.node_id, probe.key, patience=_PATIENCE, **probe.contents)
            for verdict in probe.verdicts(answer):
                self.permissions.check(host.host, since, self.user, verdict)
        else:
            nodes, place = sorted(self.cluster.hosts), TopicPartition(TOPIC, number)
            key, version, contents, _ = forbidden = draw_forbidden(self.rng, nodes, place, self.cluster.topic_id)
            answer = await self.ask(host.node_id, key, version=version, patience=_PATIENCE, **contents)
            forbidden.check(self.user, answer)

    async def _write(self, host: Host, since: Mapping[Pattern, int], number: int) -> None:
        """Each value once: if it is refused, it is in no log."""
        values, data = self.records(1, EPOCH_MS + self.cluster.now_ms)
        answer = await self.produce(host, number, data, -1, patience=_PATIENCE)
        is_allowed = answer.error_code != TOPIC_DENIED
        self.permissions.check(host.host, since, self.user, Verdict(PATTERN, Operation.WRITE, is_allowed))
        if not is_allowed:
            self.cluster.history.refuses(values[0])
        elif answer.error_code == 0:
            self.cluster.history.acknowledge(number, answer.base_offset, values[0])

    async def _read(self, host: Host, since: Mapping[Pattern, int], number: int) -> None:
        partition = {"partition": number, "fetch_offset": self._start(host, number), "partition_max_bytes": 1_000}
        answer = await self.ask(
            host.node_id,
            ApiKey.FETCH,
            patience=_PATIENCE,
            max_wait=self.rng.choice((0, 400)),
            min_bytes=self.rng.choice((0, 1, 5_000)),
            max_bytes=10_000,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": TOPIC, "partitions": [partition]}],
            forgotten_topics_data=[],
        )
        one = answer.responses[0].partitions[0]
        is_allowed = one.error_code != TOPIC_DENIED
        self.permissions.check(host.host, since, self.user, Verdict(PATTERN, Operation.READ, is_allowed))
        assert is_allowed or not one.records, f"{self.user} may not read, and gets records of {host.host}"

    def _start(self, host: Host, number: int) -> int:
        """The end: the permission may be gone before there is anything to read."""
        replica = host.replicas.get(number)
        return 0 if replica is None else replica.log.high_watermark


class Intruder(_Inquirer):
    """Sends requests without a login. They are not answered."""

    async def act(self) -> None:
        node_id = self.any_host().node_id
        channel = await connect(self.loop, self.cluster.network, (f"n{node_id}", PORT), 1.0)
        values, data = self.records(1, EPOCH_MS)
        self.cluster.history.refuses(values[0])
        topics = [{"name": TOPIC, "partition_data": [{"index": self.number(), "records": data}]}]
        contents = {"transactional_id": None, "acks": 1, "timeout": 1_000, "topic_data": topics}
        await must_be_refused(channel, self.rng, (ApiKey.PRODUCE, contents), self.answer)


def invite(cluster: Cluster) -> tuple[Administrator | Guest | Intruder, ...]:
    """Only to a cluster where not everyone may do everything."""
    permissions = cluster.permissions
    if permissions is None:
        return ()
    guests = (Guest(cluster, user, permissions) for user in (ALICE, BOB, MALLORY))
    return Administrator(cluster, permissions), *guests, Intruder(cluster, "intruder", permissions)
