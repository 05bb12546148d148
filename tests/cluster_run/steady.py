"""A client that writes one record after the other to one partition, goes where it is told (KIP-951) and tries again at
once: how long it has to wait is how long the cluster stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import Wire
from tests.kit.service import Service

_VERSION: Final = 12
_PACE_SECONDS: Final = 0.003
"""Between two requests: six clients that never rest would take the processors from the brokers."""
_NO_NEWS_SECONDS: Final = 0.005
"""Between two questions of one broker that had nothing new to say."""
_TRANSIENT: Final = frozenset({3, 5, 6, 7, 19, 20, 56, 74})
"""UNKNOWN_TOPIC_OR_PARTITION (it is new), LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT,
NOT_ENOUGH_REPLICAS before and after the append, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH: what a client tries again
after."""


class Event(NamedTuple):
    """At ``seconds`` of the monotonic clock ``broker`` said ``what``: an error's code, 0 or a broken connection."""

    seconds: float
    broker: str
    what: str


class Steady(Service):
    """One partition's client, in its own thread inside a ``with``. Records may be duplicated, but none is lost."""

    def __init__(self, addresses: Sequence[str], topic: str, number: int, *, timeout_ms: int = 5_000) -> None:
        self.number = number
        self.acknowledged: list[float] = []
        """When, in seconds of the monotonic clock."""
        self.events: list[Event] = []
        self._addresses = list(addresses)
        self._topic = topic
        self._timeout_ms = timeout_ms
        self._records = encode_batch([NewRecord(value=b"steady")])
        self._at = self._addresses[0]
        self._wires: dict[str, Wire] = {}
        self._is_over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self.leave_failed()
        if self._failure is not None:
            raise self._failure

    def leave_failed(self) -> None:
        self._is_over.set()
        self._thread.join(60)

    def has_written(self, count: int) -> bool:
        """Whether ``count`` records were acknowledged; raises an error from which this client cannot recover."""
        if self._failure is not None:
            raise self._failure
        return len(self.acknowledged) >= count

    def pause(self, since: float) -> float:
        """The longest time between two acknowledgements of which the second came after ``since``."""
        return max((after - before for before, after in pairwise(self.acknowledged) if after > since), default=0.0)

    def story(self, since: float) -> list[str]:
        """The client's events in its longest pause, in milliseconds since it began; repetitions are counted."""
        ends = [(after - before, before) for before, after in pairwise(self.acknowledged) if after > since]
        length, began = max(ends, default=(0.0, 0.0))
        told: list[list[object]] = []
        for seconds, broker, what in self.events:
            if began <= seconds <= began + length + 0.001:
                if told and told[-1][1:3] == [broker, what]:
                    told[-1][3] = int(str(told[-1][3])) + 1
                else:
                    told.append([f"{1000 * (seconds - began):.0f} ms", broker, what, 1])
        return [" ".join(map(str, one)) for one in told]

    def _run(self) -> None:
        try:
            while not self._is_over.wait(_PACE_SECONDS):
                self._once()
        except Exception as error:  # in its own thread: the test is in another
            self._failure = error
            raise
        finally:
            for wire in self._wires.values():
                wire.close()

    def _once(self) -> None:
        asked = self._at
        try:
            wire = self._wires.get(asked)
            if wire is None:
                wire = self._wires[asked] = Wire(asked)
            partition = {"index": self.number, "records": self._records}
            topics = [{"name": self._topic, "partition_data": [partition]}]
            answer = wire.ask(ApiKey.PRODUCE, _VERSION, acks=-1, timeout=self._timeout_ms, topic_data=topics)
        except OSError as error:
            self._note(asked, type(error).__name__)
            if (broken := self._wires.pop(asked, None)) is not None:
                broken.close()
            self._elsewhere()
            return
        found = answer.responses[0].partition_responses[0]
        self._note(asked, str(found.error_code))
        if found.error_code == 0:
            self.acknowledged.append(time.monotonic())
            return
        if found.error_code not in _TRANSIENT:
            raise RuntimeError(f"{self._topic}-{self.number}: {asked} says {found.error_code}")
        endpoints = {one.node_id: f"{one.host}:{one.port}" for one in answer.node_endpoints}
        told = endpoints.get(found.current_leader.leader_id)
        if told is None or told == asked:
            self._elsewhere()
        else:
            self._at = told

    def _elsewhere(self) -> None:
        self._is_over.wait(_NO_NEWS_SECONDS)
        self._at = self._addresses[(self._addresses.index(self._at) + 1) % len(self._addresses)]

    def _note(self, broker: str, what: str) -> None:
        self.events.append(Event(time.monotonic(), broker, what))
