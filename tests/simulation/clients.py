"""Clients as Kafka's are: an idempotent producer (KIP-98), a consumer of given partitions, a member of a group."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from seglog.core.errors import AuthenticationFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.records import any_magic
from seglog.records.batch import entries
from seglog.records.record import NewRecord, encode_batch
from tests.kit.virtual_loop import VirtualLoop, World
from tests.kit.virtual_net import Address, Network
from tests.simulation.principals import Login, log_in, renewal_of
from tests.simulation.truth import Truth, ViolationError, check
from tests.simulation.wire import Channel, LostError, connect

IN_FLIGHT: Final = 5
OUT_OF_RANGE: Final = 1
PASSING: Final = {3, 5, 6, 7, 14, 15, 16, 56}
"""Errors on which a client tries again: no such partition yet, no leader, no coordinator, loading, a failed disk."""
OUT_OF_ORDER: Final = 45
DUPLICATE: Final = 46
TO_REJOIN: Final = {22, 25, 27}
NO_SESSION: Final = {70, 71}


class Client(ABC):
    """A process with one connection to a broker. ``is_over``: it is to end what it does, and ends."""

    seconds = 2.0
    """How long it waits for an answer."""

    def __init__(
        self, world: World, network: Network, name: str, broker: Address, truth: Truth, topics: dict[str, int]
    ) -> None:
        self.name = name
        self.world = world
        self.truth = truth
        self.loop = VirtualLoop(world, name)
        self.rng = Random(f"{world.seed} {name}")
        self.places = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        self.is_over = False
        self.has_ended = False
        self.login: Login | None = None
        self._network = network
        self._broker = broker
        self._channel: Channel | None = None

    def start(self) -> None:
        self.loop.create_task(self._run())

    async def _run(self) -> None:
        await self.run()
        self.has_ended = True

    @abstractmethod
    def run(self) -> Coroutine[Any, Any, None]:
        """The client's work, from its start until the run is over."""

    def die(self) -> None:
        self.world.note("dies", self.name)
        self._network.process_died(self.loop, 0.01)
        self.loop.kill()
        self.has_ended = True

    async def channel(self) -> Channel:
        """Open; raises `LostError`."""
        if self._channel is None or not self._channel.is_open:
            self._channel = await connect(self.loop, self._network, self._broker, self.seconds)
            await self._begin_session(self._channel)
        elif self.world.now >= self._channel.renew_at:
            await self._begin_session(self._channel)
        return self._channel

    async def _begin_session(self, channel: Channel) -> None:
        lifetime = await self.log_in(channel)
        if lifetime is not None:
            channel.renew_at = self.world.now + renewal_of(lifetime, self.rng)

    async def log_in(self, channel: Channel) -> float | None:
        """By ``login``, if there is one. Returns the seconds until the session ends."""
        if self.login is None:
            return None
        try:
            return await log_in(channel, self.login, self.answer)
        except AuthenticationFailedError as error:
            raise ViolationError(f"{self.name} cannot log in as {self.login.user}: {error}") from error

    async def ask(self, key: ApiKey, /, **contents: object) -> Message:
        """Raises `LostError`; then the connection is at an end, too."""
        channel = await self.channel()
        return await self.answer(channel, channel.send(key, contents))

    async def answer(self, channel: Channel, future: asyncio.Future[Message], more: float = 0.0) -> Message:
        try:
            async with asyncio.timeout(self.seconds + more):
                return await future
        except TimeoutError as error:
            channel.close()
            raise LostError from error

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.2)


@dataclass(eq=False, slots=True)
class Batch:
    sequence: int
    values: list[bytes]
    data: bytes
    is_flying: bool = False
    was_sent: bool = False


class Producer(Client):
    """Each batch keeps its sequence until it is acknowledged, and is sent again behind those before it. With an answer
    that says that earlier batches are gone it has no way on but another producer id (as an application that restarts);
    that is a violation unless a power cut may have taken them."""

    def __init__(self, *arguments: Any, most_bytes: int) -> None:
        super().__init__(*arguments)
        self.acknowledged = 0
        self._most_bytes = most_bytes
        self._id = -1
        self._queues: dict[TopicPartition, deque[Batch]] = {place: deque() for place in self.places}
        self._sequences: dict[TopicPartition, int] = {}
        self._numbers = dict.fromkeys(self.places, 0)
        self._flying = 0
        self._backoff = 0.0

    async def run(self) -> None:
        while not self.is_over or any(self._queues.values()):
            try:
                if self._id < 0:
                    await self._begin()
                if not self.is_over and self.rng.random() < 0.7:
                    self._add(self.rng.choice(self.places))
                channel = await self.channel()
                while self._flying < IN_FLIGHT and self._send_next(channel):
                    pass
                await asyncio.sleep(self._backoff + self.rng.random() * (0.1 if self.rng.random() < 0.9 else 0.5))
                self._backoff = 0.0
            except LostError:
                await self.pause()

    async def _begin(self) -> None:
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout=1000)
        if answer.error_code:
            raise LostError
        self.truth.has_id(answer.producer_id, self.name)
        self._id = answer.producer_id
        for place, queue in self._queues.items():
            unsent = [batch.values for batch in queue if not batch.was_sent]
            queue.clear()  # of what was sent nobody knows where it is
            self._sequences[place] = 0
            for values in unsent:
                self._enqueue(place, values)

    def _add(self, place: TopicPartition) -> None:
        values = []
        for _ in range(self.rng.randrange(1, 5)):
            size = self._most_bytes if self.rng.random() < 0.002 else self.rng.randrange(12, 120)
            values.append(f"{self.name}:{self._numbers[place]}:{place}:".encode().ljust(size, b"."))
            self._numbers[place] += 1
        self._enqueue(place, values)

    def _enqueue(self, place: TopicPartition, values: list[bytes]) -> None:
        sequence = self._sequences[place]
        data = encode_batch(
            [NewRecord(value, timestamp=1_700_000_000_000) for value in values],
            producer_id=self._id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        self._sequences[place] += len(values)
        self._queues[place].append(Batch(sequence, values, bytes(data)))

    def _send_next(self, channel: Channel) -> bool:
        """A request with the next batch of one partition, or of several."""
        batches: dict[TopicPartition, Batch] = {}
        for place in self.rng.sample(self.places, len(self.places)):
            batch = next((one for one in self._queues[place] if not one.is_flying), None)
            if batch is not None and (not batches or self.rng.random() < 0.3):
                batches[place] = batch
        if not batches:
            return False
        topics: dict[str, list[dict[str, object]]] = {}
        for place, batch in batches.items():
            batch.is_flying = batch.was_sent = True
            topics.setdefault(place.topic, []).append({"index": place.partition, "records": batch.data})
        wanted = [{"name": name, "partition_data": partitions} for name, partitions in topics.items()]
        acks = 1 if self._flying else -1
        contents = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": wanted}
        self._flying += 1
        self.loop.create_task(self._wait(channel, channel.send(ApiKey.PRODUCE, contents), batches))
        return True

    async def _wait(
        self, channel: Channel, future: asyncio.Future[Message], batches: dict[TopicPartition, Batch]
    ) -> None:
        producer_id, losses = self._id, self.truth.losses
        try:
            answer = await self.answer(channel, future)
        except LostError:
            return
        finally:
            self._flying -= 1
            for batch in batches.values():
                batch.is_flying = False
        if producer_id != self._id:
            return
        for topic in answer.responses:
            for one in topic.partition_responses:
                place = TopicPartition(topic.name, one.index)
                self._answered(place, batches[place], one, losses)

    def _answered(self, place: TopicPartition, batch: Batch, answer: Message, losses: int) -> None:
        code, queue = answer.error_code, self._queues[place]
        if code in (0, DUPLICATE):
            if code == 0 and answer.base_offset >= 0:
                self.truth.has_acknowledged(place, answer.base_offset, batch.values, losses)
            if batch in queue:
                queue.remove(batch)
                self.acknowledged += 1
        elif code == OUT_OF_ORDER:
            if queue and batch is queue[0]:
                excused = self.truth.losses > 0 and not self.truth.has(batch.values)
                check(excused, f"P1: {place} does not know what {self.name} was told of before")
                self.truth.gave_up.add(self.name.encode())
                self._id = -1
        else:
            check(code in PASSING, f"{self.name} is told {code} of {place}: {answer.error_message}")
            self._backoff = 0.2


class Fetcher(Client):
    """The base of all consumers: positions, and a fetch that reads from there."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.positions: dict[TopicPartition, int] = {}
        self._session, self._epoch = 0, -1
        self._told: dict[TopicPartition, int] = {}

    async def fetch(self) -> None:
        """Read on, with a session or without."""
        wanted = self.positions if self._epoch <= 0 else self._changed()
        topics: dict[str, list[dict[str, object]]] = {}
        for place, offset in wanted.items():
            wish: dict[str, object] = {
                "partition": place.partition,
                "fetch_offset": offset,
                "partition_max_bytes": 3000,
            }
            topics.setdefault(place.topic, []).append(wish)
            self._told[place] = offset
        losses = self.truth.losses
        try:
            answer = await self.ask(
                ApiKey.FETCH,
                max_wait=int(self.rng.random() * 500),
                min_bytes=self.rng.choice((1, 1, 2000)),
                max_bytes=10_000,
                isolation_level=self.rng.randrange(2),
                session_id=self._session,
                session_epoch=self._epoch,
                topics=[{"topic": name, "partitions": partitions} for name, partitions in topics.items()],
                forgotten_topics_data=[],
            )
        except LostError:
            self.forget_session()
            raise
        if answer.error_code:
            check(answer.error_code in NO_SESSION, f"{self.name} is told {answer.error_code} of its fetch")
            self.forget_session()
            return
        if self._epoch >= 0:
            self._session, self._epoch = answer.session_id, self._epoch + 1 if answer.session_id else -1
        for topic in answer.responses:
            for one in topic.partitions:
                await self._take(TopicPartition(topic.topic, one.partition_index), one, losses)

    def forget_session(self) -> None:
        self._session, self._epoch = 0, self.rng.choice((-1, 0))
        self._told.clear()

    def _changed(self) -> dict[TopicPartition, int]:
        return {place: offset for place, offset in self.positions.items() if self._told.get(place) != offset}

    async def _take(self, place: TopicPartition, answer: Message, losses: int) -> None:
        if answer.error_code == OUT_OF_RANGE:
            await self._reset(place)
        elif answer.error_code:
            check(answer.error_code in PASSING, f"{self.name} is told {answer.error_code} of {place}")
            await self.pause()
        elif answer.records and place in self.positions:
            data = memoryview(answer.records)
            for entry in entries(data):
                for record in any_magic.decode(data, entry):
                    if record.offset >= self.positions[place]:
                        check(record.offset == self.positions[place], f"{place} has no {self.positions[place]}")
                        self.truth.has_read(place, record.offset, record.value or b"", losses)
                        self.positions[place] = record.offset + 1

    async def _reset(self, place: TopicPartition) -> None:
        """To the start, where records were deleted; where some were lost, to the end."""
        for timestamp in (-2, -1):
            partition = {"partition_index": place.partition, "timestamp": timestamp}
            topics = [{"name": place.topic, "partitions": [partition]}]
            answer = await self.ask(ApiKey.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=topics, timeout=1000)
            one = answer.topics[0].partitions[0]
            if one.error_code or place not in self.positions:
                return
            if timestamp == -2 and self.positions[place] < one.offset:
                check(one.offset <= self.truth.may_start[place], f"{place} begins at {one.offset}")
                self.positions[place] = one.offset
                return
            if timestamp == -1 and self.positions[place] > one.offset:
                check(self.truth.losses > 0, f"P1: {place} ends at {one.offset}, before {self.positions[place]}")
                self.positions[place] = one.offset


class Reader(Fetcher):
    """Reads all partitions from their start on."""

    async def run(self) -> None:
        self.positions = dict.fromkeys(self.places, 0)
        self.forget_session()
        while not self.is_over or not self.is_at_end():
            try:
                await self.fetch()
            except LostError:
                await self.pause()

    def is_at_end(self) -> bool:
        return all(self.positions[place] >= self.truth.ends[place] for place in self.places)


class Pipeliner(Client):
    """Sends fetches ahead on one connection, each of another partition, some of which wait; each answer must be that to
    its own request. A request without an answer ends the connection, or the client waits for it in vain."""

    async def run(self) -> None:
        while not self.is_over:
            try:
                channel = await self.channel()
                places = [self.rng.choice(self.places) for _ in range(self.rng.randrange(2, IN_FLIGHT + 1))]
                asked = [(place, channel.send(ApiKey.FETCH, self._request(place))) for place in places]
                for place, future in asked:
                    self._check(place, await self.answer(channel, future))
            except LostError:
                await self.pause()

    def _request(self, place: TopicPartition) -> dict[str, object]:
        """From near the end: the answer may have to wait for more."""
        start = max(self.truth.ends[place] - self.rng.choice((0, 0, 1, 5)), self.truth.may_start[place])
        partition = {"partition": place.partition, "fetch_offset": start, "partition_max_bytes": 3000}
        return {
            "max_wait": self.rng.choice((0, 20, 200)),
            "min_bytes": self.rng.choice((1, 100)),
            "max_bytes": 10_000,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": place.topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
        }

    def _check(self, place: TopicPartition, answer: Message) -> None:
        there = [
            TopicPartition(topic.topic, one.partition_index) for topic in answer.responses for one in topic.partitions
        ]
        check(there == [place], f"the answer to a fetch of {place} is one of {there}")
        code = answer.responses[0].partitions[0].error_code
        check(code in {0, OUT_OF_RANGE, *PASSING}, f"{self.name} is told {code} of {place}")


class Deleter(Client):
    """Deletes the oldest records from time to time."""

    async def run(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.rng.random() * 8)
            place = self.rng.choice(self.places)
            offset = int(self.truth.ends[place] * self.rng.random() * 0.7)
            self.truth.may_start[place] = max(self.truth.may_start[place], offset)
            partition = {"partition_index": place.partition, "offset": offset}
            try:
                answer = await self.ask(
                    ApiKey.DELETE_RECORDS, topics=[{"name": place.topic, "partitions": [partition]}], timeout=1000
                )
            except LostError:
                continue
            code = answer.topics[0].partitions[0].error_code
            check(code in {0, OUT_OF_RANGE, *PASSING}, f"DeleteRecords of {place} {offset}: {code}")
