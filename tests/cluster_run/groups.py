"""Members of one consumer group that read, commit and rebalance while brokers come and go."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.cluster_run.history import OK, History, Key, Read, Recorder, Value
from tests.cluster_run.reading import PATIENT, reads_of
from tests.kit.waiting import wait_until

_COMMIT_SECONDS: Final = 0.3
_OUTCOME_SECONDS: Final = 5.0
"""After so long a commit is taken to have no outcome: librdkafka forgets some when a session ends."""
SECONDS: Final = 120.0


class Group:
    """All that its members have committed and read. ``wrong``: what must never be.

    A commit that was acknowledged is where the next owner of the partition begins, or behind it: another member may
    have committed more. Unless an earlier commit of that generation has no known outcome: it may be applied late, and
    take the partition back. A member therefore has one commit under way at a time; librdkafka sends one that is to be
    retried behind later ones.
    """

    def __init__(self, history: History, bootstrap: str, name: str, topic: str, wrong: list[str]) -> None:
        self.wrong = wrong
        self.commits = 0
        self._history = history
        self._bootstrap = bootstrap
        self._name = name
        self._topic = topic
        self._committed: dict[Key, int] = {}
        self._uncertain: dict[Key, int] = {}
        """The least offset that a commit without a known outcome may still set, in this generation."""
        self._lock = threading.Lock()

    def floors(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Where the new owner of these partitions begins at least. Commits of the generation before are refused now."""
        with self._lock:
            return {key: min(found, self._uncertain.pop(key, found)) for key in keys for found in [self._last(key)]}

    def committed(self, found: Sequence[TopicPartition]) -> None:
        with self._lock:
            self.commits += 1
            for one in found:
                if one.error is None:
                    key = _key(one)
                    self._committed[key] = max(self._last(key), one.offset)

    def doubted(self, sent: Sequence[TopicPartition]) -> None:
        """Nobody can say what became of a commit."""
        with self._lock:
            for one in sent:
                self._uncertain[_key(one)] = min(self._uncertain.get(_key(one), one.offset), one.offset)

    def _last(self, key: Key) -> int:
        return self._committed.get(key, 0)

    def consume(self, name: str, is_over: threading.Event) -> None:
        """One member, until ``is_over``."""
        member = _Member(self, Recorder(self._history, name))
        consumer = Consumer(
            {
                **PATIENT,
                "bootstrap.servers": self._bootstrap,
                "client.id": name,
                "group.id": self._name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                "on_commit": member.committed,
            }
        )
        consumer.subscribe([self._topic], on_assign=member.assigned, on_revoke=member.revoked)
        next_commit = 0.0
        while not is_over.is_set():
            began = member.recorder.now()
            reads = reads_of(consumer.consume(100, 0.1), self.wrong)
            member.polled(began, reads)
            if member.recorder.now() > next_commit and member.positions:
                member.commit(consumer)
                next_commit = member.recorder.now() + _COMMIT_SECONDS
        consumer.close()

    def wait_for_all(self) -> None:
        """Until its members have read everything that was acknowledged."""
        done = 0
        missing: set[tuple[Key, Value]] = set()
        early: set[tuple[Key, Value]] = set()

        def have_read_all() -> bool:
            nonlocal done, missing, early
            assert not self.wrong, self.wrong
            ops = self._history.ops[done:]
            done += len(ops)
            for op in ops:
                if op.client.startswith("g"):
                    seen = {(read.key, read.value) for read in op.reads}
                    early |= seen - missing
                    missing -= seen
                elif op.outcome == OK:
                    sent = {(send.key, send.value) for send in op.sends}
                    missing |= sent - early
            return not missing

        def who_lacks_what() -> str:
            return f"group {self._name}, which has not read {len(missing)}: {sorted(missing)[:5]}"

        wait_until(have_read_all, who_lacks_what, SECONDS)


class _Member:
    def __init__(self, group: Group, recorder: Recorder) -> None:
        self.recorder = recorder
        self.positions: dict[Key, TopicPartition] = {}
        self._group = group
        self._changed: set[Key] = set()
        self._under_way: list[TopicPartition] = []
        """Offsets whose commit, sent at ``_sent``, has no outcome yet."""
        self._sent = 0.0
        self._floors: dict[Key, int] = {}
        """Of partitions that are new to it: what was committed when it got them."""

    def assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._give_up()
        keys = [_key(one) for one in partitions]
        self._changed.update(keys)
        self._floors.update(self._group.floors(keys))

    def revoked(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.commit(consumer)
        for one in partitions:
            self._changed.add(_key(one))
            self.positions.pop(_key(one), None)

    def polled(self, began: float, reads: Sequence[Read]) -> None:
        for read in reads:
            floor = self._floors.pop(read.key, None)
            if floor is not None and read.offset < floor:
                what = f"{self.recorder.client} begins {read.key} at {read.offset}, and {floor} was committed"
                self._group.wrong.append(what)
            topic, _, number = read.key.rpartition("-")
            self.positions[read.key] = TopicPartition(topic, int(number), read.offset + 1)
        if reads:
            self.recorder.polled(began, reads, rebalanced=self._changed)
            self._changed = set()

    def commit(self, consumer: Consumer) -> None:
        """Commit the position without waiting: librdkafka 2.16 waits forever if its session ends during the commit."""
        now = self.recorder.now()
        if self._under_way and now < self._sent + _OUTCOME_SECONDS:
            return
        self._give_up()
        if self.positions:
            self._under_way, self._sent = list(self.positions.values()), now
            try:
                consumer.commit(offsets=self._under_way, asynchronous=True)
            except KafkaException:
                self._give_up()

    def committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        """The outcome of a commit. A commit that is reported as failed may still succeed later."""
        if error is None:
            self._group.committed(partitions)
            self._under_way = []
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._group.doubted(self._under_way)
        self._under_way = []


def _key(partition: TopicPartition) -> Key:
    return f"{partition.topic}-{partition.partition}"
