"""Stock clients that write and read all the time, whatever happens to the brokers, and record the responses they
get."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.cluster_run.groups import Group
from tests.cluster_run.history import INFO, OK, History, Outcome, Recorder, Send
from tests.cluster_run.reading import PATIENT, reads_of
from tests.kit.service import Service
from tests.kit.waiting import wait_until

SECONDS: Final = 90.0
_WAITING: Final = 50
"""Records of a producer that may wait for their acknowledgement."""


class Workload(Service):
    """``with Workload(bootstrap, "t", 4) as load``: producers and consumers at work; then `finish` for the history.

    Producers have acks=all, are idempotent if nothing else is said, and never give up. Consumers are assigned all
    partitions; each reads from the beginning on. Members share them as a group. ``wrong``: what a client was told that
    it must never be told.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        producers: int = 2,
        consumers: int = 1,
        members: int = 0,
        pace: float = 0.002,
        is_idempotent: bool = True,
    ) -> None:
        self.history = History()
        self.wrong: list[str] = []
        self.group = Group(self.history, bootstrap, f"of-{topic}", topic, self.wrong)
        self._is_idempotent = is_idempotent
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = range(partitions)
        self._pace = pace
        self._no_more_sends = threading.Event()
        self._no_more_polls = threading.Event()
        self.acknowledged = 0
        self._lock = threading.Lock()
        self._producers = [self._thread(partial(self._produce, f"p{at}")) for at in range(producers)]
        self._threads = [
            *self._producers,
            *(self._thread(partial(self._consume, f"c{at}")) for at in range(consumers)),
            *(self._thread(partial(self.group.consume, f"g{at}", self._no_more_polls)) for at in range(members)),
        ]
        self._has_members = members > 0

    def _thread(self, act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                act()
            except Exception as error:  # in its own thread: `finish` is in another
                self.wrong.append(f"{type(error).__name__}: {error}")
                raise

        return threading.Thread(target=run, daemon=True)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        self._no_more_sends.set()
        self._no_more_polls.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)

    def wait_for_more(self, count: int = 20) -> float:
        """Wait until ``count`` further records are acknowledged; returns the seconds that this took."""
        began, wanted = time.monotonic(), self.acknowledged + count

        def are_there() -> bool:
            assert not self.wrong, self.wrong
            return self.acknowledged >= wanted

        wait_until(are_there, "acknowledgements", SECONDS)
        return time.monotonic() - began

    def finish(self) -> History:
        """No more is sent; what was sent is waited for, and read by the group; a new client reads all from the
        beginning."""
        self._no_more_sends.set()
        for thread in self._producers:
            thread.join(2 * SECONDS)
        if self._has_members:
            self.group.wait_for_all()
        self._no_more_polls.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)
            assert not thread.is_alive(), "a client does not end"
        self._poll_all()
        return self.history

    def _produce(self, name: str) -> None:
        recorder = Recorder(self.history, name)
        producer = Producer(
            {
                **PATIENT,
                "bootstrap.servers": self._bootstrap,
                "client.id": name,
                "enable.idempotence": self._is_idempotent,
                "acks": "all",
                # librdkafka 2.16 gives its producer another epoch when a request is refused because the one before it
                # was, and may then write anew what another partition's dead leader has not answered: issue 4953 there.
                "max.in.flight.requests.per.connection": 1 if self._is_idempotent else 5,
                "linger.ms": 1,
                "message.timeout.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
            }
        )
        while not self._no_more_sends.is_set():
            for number in self._partitions:
                if len(producer) < _WAITING:
                    value = recorder.value()
                    done = self._done(recorder, f"{self._topic}-{number}", value)
                    producer.produce(self._topic, value.encode(), partition=number, on_delivery=done)
            producer.poll(self._pace)
        if producer.flush(SECONDS):
            self.wrong.append(f"{name} could not send all")
            producer.purge()
            producer.flush(1)

    def _done(self, recorder: Recorder, key: str, value: str) -> Callable[[KafkaError | None, Message], None]:
        began = recorder.now()

        def delivered(error: KafkaError | None, message: Message) -> None:
            outcome: Outcome = INFO if error is not None else OK
            if error is not None and error.code() not in (KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE):
                self.wrong.append(f"{recorder.client} gave up {value}: {error}")
            offset = message.offset() if error is None else None
            recorder.sent(began, outcome, [Send(key, value, offset)])
            if error is None:
                with self._lock:
                    self.acknowledged += 1

        return delivered

    def _consume(self, name: str) -> None:
        recorder = Recorder(self.history, name)
        consumer = self._consumer(name)
        consumer.assign([TopicPartition(self._topic, number, 0) for number in self._partitions])
        is_fresh = True
        while not self._no_more_polls.is_set():
            began = recorder.now()
            reads = reads_of(consumer.consume(100, 0.1), self.wrong)
            if reads:
                recorder.polled(began, reads, is_fresh=is_fresh)
                is_fresh = False
        consumer.close()

    def _poll_all(self) -> None:
        recorder = Recorder(self.history, "final")
        consumer = self._consumer("final")
        left = {}
        for number in self._partitions:
            low, high = self._watermarks(consumer, number)
            assert low == 0, f"{self._topic}-{number} begins at {low}"
            left[f"{self._topic}-{number}"] = high
        consumer.assign([TopicPartition(self._topic, number, 0) for number in self._partitions])
        deadline = time.monotonic() + SECONDS
        is_fresh = True
        ends = {key: high for key, high in left.items() if high}
        while ends:
            assert time.monotonic() < deadline, f"final polls do not come to {ends}"
            began = recorder.now()
            reads = reads_of(consumer.consume(1000, 0.2), self.wrong)
            recorder.polled(began, reads, is_fresh=is_fresh, is_final=True)
            is_fresh = False
            for read in reads:
                if read.offset + 1 >= ends.get(read.key, 1 << 62):
                    del ends[read.key]
        consumer.close()

    def _watermarks(self, consumer: Consumer, number: int) -> tuple[int, int]:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=5.0)
            except KafkaException:
                assert time.monotonic() < deadline, f"{self._topic}-{number} tells no offsets"
            else:
                return low, high

    def _consumer(self, name: str) -> Consumer:
        return Consumer(
            {
                **PATIENT,
                "bootstrap.servers": self._bootstrap,
                "client.id": name,
                "group.id": "none",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
            }
        )
