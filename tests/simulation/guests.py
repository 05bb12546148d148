"""Clients of a lone broker that may do something today and not tomorrow, and the administrator who says so."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from seglog.broker.security.acls import Acl, Entry, Operation, Pattern, PatternType, Permission, ResourceType
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.records import any_magic
from seglog.records.batch import entries
from seglog.records.record import NewRecord, encode_batch
from tests.broker.security.acl_node import everything
from tests.simulation.clients import OUT_OF_RANGE, PASSING, Client
from tests.simulation.principals import (
    BOB,
    CLUSTER,
    GROUPS,
    TOPIC_DENIED,
    Change,
    Permissions,
    Verdict,
    creation_of,
    draw_change,
    draw_forbidden,
    draw_grants,
    draw_login,
    draw_probe,
    log_in_if,
    login_of,
    must_be_refused,
    password_change,
)
from tests.simulation.truth import check
from tests.simulation.wire import Channel, LostError, connect

PATTERNS: Final = {
    "a": Pattern(ResourceType.TOPIC, "a"),
    "b": Pattern(ResourceType.TOPIC, "b", PatternType.PREFIXED),
}
"""Of each topic the only pattern that applies to it."""
BROKER: Final = "the broker"
_PLACES_OF_BROKERS: Final = (0, 1)
_STABLE: Final[Mapping[Pattern, Sequence[tuple[str, Operation]]]] = {
    **dict.fromkeys(
        PATTERNS.values(),
        (
            ("producer", Operation.WRITE),
            ("reader", Operation.READ),
            ("member", Operation.READ),
            ("deleter", Operation.DELETE),
        ),
    ),
    GROUPS: (("member", Operation.READ),),
    CLUSTER: (("producer", Operation.IDEMPOTENT_WRITE),),
}
"""What other clients may always do, in the same lists as what comes and goes."""


class Administrator(Client):
    """A super user: creates and removes ACLs and passwords, one after the other, each until it is acknowledged."""

    def __init__(self, *arguments: Any, permissions: Permissions) -> None:
        super().__init__(*arguments)
        self.permissions = permissions
        self.is_ready = False
        """The stable ACLs are there."""

    async def run(self) -> None:
        for pattern, grants in _STABLE.items():
            acls = [Acl(pattern, Entry(f"User:{user}", "*", one, Permission.ALLOW)) for user, one in grants]
            acls += draw_grants(self.rng, pattern)
            await self._make(creation_of(self.permissions, acls))
        await self._make(password_change(self.rng, self.permissions))
        self.is_ready = True
        while not self.is_over:
            await asyncio.sleep(self.rng.random() * 0.5)
            if self.rng.random() < 0.8:
                await self._make(draw_change(self.rng, self.permissions, (*PATTERNS.values(), GROUPS)))
            else:
                await self._list()

    async def _make(self, change: Change) -> None:
        since = change.past.last
        change.past.becomes(change.after)
        self.world.note("change", change.key.name, since)
        while True:
            try:
                if change.answered(BROKER, since, await self.ask(change.key, **change.contents)):
                    return
            except LostError:
                pass
            await self.pause()

    async def _list(self) -> None:
        since = self.permissions.seen(BROKER)
        try:
            answer = await self.ask(ApiKey.DESCRIBE_ACLS, **everything())
        except LostError:
            return
        check(answer.error_code == 0, f"the administrator is told {answer.error_code}")
        self.permissions.check_listed(BROKER, since, answer)


class Guest(Client):
    """Writes, reads and asks whatever it may, or may not. ``topic_ids`` are those of all topics."""

    def __init__(self, *arguments: Any, user: str, permissions: Permissions, topic_ids: Mapping[str, UUID]) -> None:
        super().__init__(*arguments)
        self.user = user
        self.permissions = permissions
        self._topic_ids = topic_ids
        self._written = 0
        self.truth.unordered.add(self.name.encode())
        if user != BOB:
            self.login = login_of(user)

    async def run(self) -> None:
        while not self.is_over:
            with suppress(LostError):
                await self._act()
            await asyncio.sleep(self.rng.random() * 0.4)

    async def log_in(self, channel: Channel) -> float | None:
        """Bob is let in if that is his password; later with the same one."""
        if self.user != BOB:
            return await super().log_in(channel)
        if self.login is None or channel.renew_at == math.inf:
            self.login = draw_login(self.rng, self.permissions)
        return await log_in_if(self.permissions, BROKER, channel, self.login, self.answer)

    async def _act(self) -> None:
        await self.channel()
        since, rng, place = self.permissions.seen(BROKER), self.rng, self.rng.choice(self.places)
        what = rng.random()
        if what < 0.35:
            await self._write(since, place)
        elif what < 0.6:
            await self._read(since, place)
        elif what < 0.85:
            probe = draw_probe(rng, PATTERNS, self.places, PATTERNS)
            for verdict in probe.verdicts(await self.ask(probe.key, **probe.contents)):
                self.permissions.check(BROKER, since, self.user, verdict)
        else:
            forbidden = draw_forbidden(rng, _PLACES_OF_BROKERS, place, self._topic_ids[place.topic])
            channel = await self.channel()
            future = channel.send(forbidden.key, forbidden.contents, forbidden.version)
            forbidden.check(self.user, await self.answer(channel, future))

    async def _write(self, since: Mapping[Pattern, int], place: TopicPartition) -> None:
        """Each value once: if it is refused, it is in no log."""
        self._written += 1
        value = f"{self.name}:{self._written}:{place}:".encode()
        data = encode_batch([NewRecord(value, timestamp=1_700_000_000_000)])
        wanted = [{"name": place.topic, "partition_data": [{"index": place.partition, "records": bytes(data)}]}]
        acks, losses = self.rng.choice((-1, 1)), self.truth.losses
        answer = await self.ask(ApiKey.PRODUCE, transactional_id=None, acks=acks, timeout=1000, topic_data=wanted)
        one = answer.responses[0].partition_responses[0]
        is_allowed = one.error_code != TOPIC_DENIED
        self._judge(since, place, Operation.WRITE, is_allowed)
        if not is_allowed:
            self.truth.refuses(value)
        elif one.error_code == 0:
            self.truth.has_acknowledged(place, one.base_offset, [value], losses)
        else:
            check(one.error_code in PASSING, f"{self.name} is told {one.error_code} of {place}")

    async def _read(self, since: Mapping[Pattern, int], place: TopicPartition) -> None:
        """From near the end: the permission may be gone before there is anything to read."""
        start = max(self.truth.ends[place] - self.rng.choice((0, 0, 5)), self.truth.may_start[place])
        partition = {"partition": place.partition, "fetch_offset": start, "partition_max_bytes": 3000}
        losses = self.truth.losses
        answer = await self.ask(
            ApiKey.FETCH,
            max_wait=self.rng.choice((0, 400)),
            min_bytes=self.rng.choice((1, 2000)),
            max_bytes=10_000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": place.topic, "partitions": [partition]}],
            forgotten_topics_data=[],
        )
        if answer.error_code:
            raise LostError
        one = answer.responses[0].partitions[0]
        is_allowed = one.error_code != TOPIC_DENIED
        self._judge(since, place, Operation.READ, is_allowed)
        check(one.error_code in {0, TOPIC_DENIED, OUT_OF_RANGE, *PASSING}, f"{self.name} is told {one.error_code}")
        check(is_allowed or not one.records, f"{self.name} may not read {place}, and gets records")
        data = memoryview(one.records or b"")
        for record in (record for entry in entries(data) for record in any_magic.decode(data, entry)):
            if record.offset >= start:
                self.truth.has_read(place, record.offset, record.value or b"", losses)

    def _judge(self, since: Mapping[Pattern, int], place: TopicPartition, operation: Operation, allowed: bool) -> None:
        self.permissions.check(BROKER, since, self.user, Verdict(PATTERNS[place.topic], operation, allowed))


class Intruder(Client):
    """Sends requests without a login. They are not answered."""

    async def run(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.rng.random() * 1.5)
            try:
                channel = await connect(self.loop, self._network, self._broker, self.seconds)
                await must_be_refused(channel, self.rng, self._request(), self.answer)
            except LostError:
                pass

    def _request(self) -> tuple[ApiKey, dict[str, object]]:
        place = self.rng.choice(self.places)
        if self.rng.random() < 0.3:
            return ApiKey.METADATA, {"topics": None}
        value = f"{self.name}:{self.rng.random()}:".encode()
        self.truth.refuses(value)
        data = encode_batch([NewRecord(value, timestamp=1_700_000_000_000)])
        wanted = [{"name": place.topic, "partition_data": [{"index": place.partition, "records": bytes(data)}]}]
        return ApiKey.PRODUCE, {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": wanted}
