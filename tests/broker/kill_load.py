"""Stock clients that continue while their broker is killed, and check it against every response that they got."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

SECONDS: Final = 60.0
_OK_TO_FAIL: Final = {
    KafkaError._WAIT_COORD,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._NO_OFFSET,
    KafkaError._DESTROY,
    KafkaError._STATE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REQUEST_TIMED_OUT,
}
"""Of a commit: not done, or not known to be. None of them may come where it was done and is gone later."""

_LIFE: Final = 4000
"""Records that a member reads before another one comes in its place."""

Place = tuple[str, int]


class Told:
    """All acknowledgements and records that clients got, in all of their threads. ``wrong`` lists contradictions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[Place, dict[int, bytes]] = defaultdict(dict)
        self.committed: dict[Place, int] = defaultdict(int)
        self.acknowledged = self.resumed = self.read = 0
        self.wrong: list[str] = []

    def saw(self, place: Place, offset: int, value: bytes) -> None:
        """A record was acknowledged or read: from now on every reader must see it there (P1, P3)."""
        with self.lock:
            before = self.known[place].setdefault(offset, value)
        if before != value:
            self.wrong.append(f"{place} {offset} was {before!r} and is {value!r}")


class Load:
    """Threads that produce and consume until they are stopped, whatever the broker does."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int], told: Told) -> None:
        self.told = told
        self._bootstrap = bootstrap
        self._topics = topics
        self._over = threading.Event()
        self._pause = threading.Event()
        self._threads: list[threading.Thread] = []

    def produce(self, name: str, *, linger_ms: int) -> None:
        self._begin(lambda: self._produce(name, linger_ms))

    def consume(self, group: str, commit_every: int) -> None:
        """A member that from time to time leaves without a last commit and rejoins."""

        def members() -> None:
            while not self._over.is_set():
                self._consume(group, commit_every)

        self._begin(members)

    def stop_producing(self) -> None:
        self._pause.set()

    def end(self) -> None:
        """End all threads; an error in any of them fails the test."""
        self._pause.set()
        self._over.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)
            assert not thread.is_alive(), "a client does not end"

    def _begin(self, act: Callable[[], None]) -> None:
        def run() -> None:
            try:
                act()
            except Exception as error:  # in its own thread: `end` is in another
                self.told.wrong.append(f"{type(error).__name__}: {error}")
                raise

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _produce(self, name: str, linger_ms: int) -> None:
        """Numbers that rise in each partition, so that loss, duplicates and disorder all show in the log."""
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": name,
                "log_level": 0,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": linger_ms,
                "message.timeout.ms": 0,
                "socket.timeout.ms": 3000,
                "retry.backoff.ms": 10,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
            }
        )
        places = [(topic, number) for topic, count in self._topics.items() for number in range(count)]
        numbers = dict.fromkeys(places, 0)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.told.wrong.append(f"{name} gave up: {error}")
                return
            self.told.saw(*_parts(message))
            self.told.acknowledged += 1

        while not self._pause.is_set():
            for place in places:
                if len(producer) < 200:
                    value = f"{name}:{numbers[place]}:".encode().ljust(60, b".")
                    producer.produce(place[0], value, partition=place[1], on_delivery=delivered)
                    numbers[place] += 1
            producer.poll(0.002)
        if producer.flush(SECONDS):
            self.told.wrong.append(f"{name} could not send all")

    def _consume(self, group: str, commit_every: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "log_level": 0,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "session.timeout.ms": 3000,
                "heartbeat.interval.ms": 300,
                "socket.timeout.ms": 3000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "fetch.wait.max.ms": 50,
            }
        )
        positions: dict[Place, int] = {}

        def assigned(one: Consumer, partitions: list[TopicPartition]) -> None:
            """Continue where the group has committed: not before an offset whose commit was acknowledged (P9)."""
            positions.clear()
            with self.told.lock:
                at_least = dict(self.told.committed)
            for partition in self._until_done(lambda: one.committed(partitions, 3.0)):
                place = (partition.topic, partition.partition)
                offset = max(partition.offset, 0)
                if offset < at_least.get(place, 0):
                    self.told.wrong.append(f"{group} resumes {place} at {offset}, not {at_least[place]}")
                self.told.resumed += offset > 0
                positions[place] = offset
            one.assign([TopicPartition(topic, number, at) for (topic, number), at in positions.items()])

        consumer.subscribe(list(self._topics), on_assign=assigned, on_revoke=lambda *_: positions.clear())
        read = 0
        while not self._over.is_set() and read < _LIFE:
            message = consumer.poll(0.05)
            if message is None or self._is_passing(message.error()):
                continue
            place, offset, value = _parts(message)
            if offset != positions.get(place):
                self.told.wrong.append(f"{group} read {place} {offset}, not {positions.get(place)}")
            positions[place] = offset + 1
            self.told.saw(place, offset, value)
            self.told.read += 1
            read += 1
            if read % commit_every == 0:
                self._commit(consumer, dict(positions))
        consumer.close()

    def _commit(self, consumer: Consumer, positions: Mapping[Place, int]) -> None:
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._is_passing(error.args[0])
            return
        with self.told.lock:
            for one in done:
                if one.error is None:
                    place = (one.topic, one.partition)
                    self.told.committed[place] = max(self.told.committed[place], one.offset)

    def _until_done(self, ask: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return ask()
            except KafkaException as error:
                if not self._is_passing(error.args[0]) or time.monotonic() > deadline:
                    raise

    def _is_passing(self, error: KafkaError | None) -> bool:
        """Whether there is an error; one that may not come is wrong."""
        if error is not None and error.code() not in _OK_TO_FAIL:
            self.told.wrong.append(f"a consumer was told {error}")
        return error is not None


def _parts(message: Message) -> tuple[Place, int, bytes]:
    topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    assert value is not None
    return (topic, partition), offset, value
