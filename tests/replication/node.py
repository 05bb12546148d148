"""One broker of a simulated world: what `seglog.broker` does around the decisions, without a socket or a loop.

Its life: start (recover the disk, ask the store for an epoch, register), fetch what it follows, check the ISR of what
it leads, renew its session, and be the controller when nobody is. Then it is killed, paused or cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seglog.cluster.model import Broker, Member, PartitionState, Stored, partition_name
from seglog.core.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from seglog.replication.replica import Replica, ReplicaAnswer, ReplicaFetch
from seglog.storage.log_dir import LogDir
from seglog.testing.clock import ManualClock
from seglog.testing.memory_fs import MemoryFs
from tests.replication.desk import Desk
from tests.replication.office import Office
from tests.replication.simulator import LAG_MS, SESSION_MS, TOPIC, RefusedError

if TYPE_CHECKING:
    from tests.replication.simulator import World

FETCH_TIMEOUT_MS = 1_500
CONFIG = {
    "log.segment.bytes": str(1 << 20),
    "log.index.interval.bytes": "256",
    "log.index.size.max.bytes": "4096",
    "log.retention.ms": "-1",
    "log.message.timestamp.before.max.ms": str(2**62),
    "log.message.timestamp.after.max.ms": str(2**62),
}


class Node:
    """A broker and its disk; the disk outlives its lives."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.clock = ManualClock()
        self.fs = MemoryFs(clock=self.clock)
        self.kept_since: int | None = None
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self._waiting: list[Callable[[], None]] = []
        self._lost_power = False
        self._forget()
        world.at(world.rng.randrange(50), self.start)

    def _forget(self) -> None:
        self.values: dict[str, tuple[Any, int]] = {}
        self.partitions: dict[int, Replica] = {}
        self.me: Member | None = None
        self.session: int | None = None
        self.renewed_ms = 0
        self.has_resigned = False
        self._early: list[tuple[str, Any, int]] = []
        self.office = Office(self)
        self.asking: dict[int, int] = {}
        self.agreeing: set[int] = set()
        self.desk = Desk(self)

    # Life and death

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.life += 1
        self._forget()
        directory = LogDir.open(
            "/log", config=CONFIG, fs=self.fs, clock=self.clock, rng=self.world.rng, hw_follows_end=False
        )
        self.directory = directory
        if TOPIC not in directory.topic_names():
            directory.create_topic(TOPIC, self.world.partitions)
        assert not directory.refused, directory.refused
        for key, log in directory.logs.items():
            self.partitions[key.partition] = Replica(directory, key, self.world.topic.topic_id, log)
        self._register()

    def crash(self, *, power: bool) -> None:
        """Killed; with ``power`` what was not flushed is gone too."""
        if not self.is_up:
            return
        self.world.note("crash", self.node_id, power)
        self.is_up = self.is_paused = False
        self.life += 1
        self._waiting.clear()
        self.world.store.readers.pop(self.node_id, None)
        for number in self.partitions:
            self.desk.give_up(number)
        if power:
            self._lost_power = True
            self.fs.crash(self.world.rng)
        else:
            self.fs.kill()
        self._forget()

    def when_running(self, act: Callable[[], None]) -> None:
        """Now; later if it is paused; never if it is dead."""
        if self.is_paused:
            self._waiting.append(act)
        elif self.is_up:
            self._guarded(act)

    def resume(self) -> None:
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            self.when_running(act)

    def _guarded(self, act: Callable[[], None]) -> None:
        self.clock.advance(max(0, self.world.now - int(self.clock.monotonic() * 1000)))
        act()

    def later(self, delay: int, act: Callable[[], None]) -> None:
        life = self.life

        def then() -> None:
            if self.life == life:
                self.when_running(act)

        self.world.at(delay, then)

    # The session

    def _register(self) -> None:
        """A new epoch, written down before anybody knows of it; then the session, then the cluster."""
        store = self.world.store
        self._early.clear()

        def numbered(epoch: Any) -> None:
            if epoch is None:
                self.later(100, self._register)
                return
            if self._lost_power or self.kept_since is None:
                self.kept_since, self._lost_power = epoch, False
            broker = Broker(node_id=self.node_id, epoch=epoch, kept_since=self.kept_since)
            self.world.ask_store(self.node_id, lambda: self._enter(broker), lambda found: self._entered(broker, found))

        self.world.ask_store(self.node_id, store.next_number, numbered)

    def _enter(self, broker: Broker) -> Any:
        """In the store: our former registration is over, this one begins, and we read everything.

        Not if a later one is there: a call of our last life may have been long on its way.
        """
        store = self.world.store
        former = store.values.get(f"brokers/{self.node_id}")
        if former is not None and former[0].epoch > broker.epoch:
            raise RefusedError("a later life")
        store.remove(f"brokers/{self.node_id}")
        session = store.open_session(self.node_id)
        store.create(f"brokers/{self.node_id}", broker, session)
        life = self.life

        def told(name: str, value: Any, version: int) -> None:
            self.when_running(lambda: self._told(name, value, version) if self.life == life else None)

        return session, store.subscribe(self.node_id, told)

    def _entered(self, broker: Broker, found: Any) -> None:
        if found is None or isinstance(found, RefusedError):
            self.later(100, self._register)
            return
        self.session, self.values = found
        self.me = Member(self.node_id, broker.epoch)
        self.renewed_ms = self.world.now
        self.office.resign()
        self.has_resigned = False
        early, self._early = self._early, []
        for change in early:
            self._told(*change)
        self._apply_all()
        self._renew(self.session)
        self.office.look()
        self.later(LAG_MS // 2, self._check_isr)
        self._fetch_all()

    def _renew(self, session: int) -> None:
        if self.session != session:
            return
        asked_ms = self.world.now

        def renewed(found: Any) -> None:
            if self.session != session:
                return
            if found is False:
                self._lose_session()
            elif found is True:
                self.renewed_ms = max(self.renewed_ms, asked_ms)
                if self.has_resigned and self.world.now - self.renewed_ms <= SESSION_MS * 2 // 3:
                    self._act_again()

        self.world.ask_store(self.node_id, lambda: self.world.store.renew(session), renewed)
        if self.world.now - self.renewed_ms > SESSION_MS * 2 // 3 and not self.has_resigned:
            self._resign()
        self.later(SESSION_MS // 5, lambda: self._renew(session))

    def _resign(self) -> None:
        """Nobody may rely on us while we do not know whether our session lives."""
        self.has_resigned = True
        self.office.resign()
        for number, partition in self.partitions.items():
            partition.resign()
            self.desk.give_up(number)

    def _act_again(self) -> None:
        """The session has lived all the time: what the store says of us counts."""
        self.has_resigned = False
        self._apply_all()
        self.office.look()

    def _lose_session(self) -> None:
        self._resign()
        self.me = self.session = None
        self.world.store.readers.pop(self.node_id, None)
        self._register()

    # The view

    def _told(self, name: str, value: Any, version: int) -> None:
        if self.me is None:
            self._early.append((name, value, version))
            return
        found = self.values.get(name)
        if value is None:
            self.values.pop(name, None)
        elif found is None or found[1] < version or name.startswith(("brokers/", "controller")):
            self.values[name] = (value, version)
        if isinstance(value, PartitionState):
            self._apply(int(name.rsplit("/", 1)[1]), Stored(value, version))
        if name == "controller":
            self.office.look()
        self.office.act()
        if self.me is not None:
            for number in self.partitions:
                self.advanced(number)

    @property
    def brokers(self) -> dict[int, Broker]:
        return {value.node_id: value for value, _ in self.values.values() if isinstance(value, Broker)}

    def _apply_all(self) -> None:
        for name, (value, version) in sorted(self.values.items()):
            if isinstance(value, PartitionState):
                self._apply(int(name.rsplit("/", 1)[1]), Stored(value, version))

    def _apply(self, number: int, stored: Stored) -> None:
        if self.me is None or self.has_resigned:
            return
        partition = self.partitions[number]
        if partition.apply(stored, self.me, self.brokers, self.world.now, lag_max_ms=LAG_MS):
            self.world.note("role", self.node_id, number, partition.leader_epoch, partition.progress is not None)
            if partition.progress is not None:
                self.agreeing.add(number)
                self.world.history.leads(number, partition.leader_epoch, self.me)
            else:
                self.desk.give_up(number)
                self._fetch(number)
        self.advanced(number)

    # Following

    def _fetch_all(self) -> None:
        for number in self.partitions:
            self._fetch(number)
        self.later(200, self._fetch_all)

    def _fetch(self, number: int) -> None:
        partition = self.partitions[number]
        leader = partition.leader
        if self.me is None or partition.progress is not None or leader < 0 or number in self.asking:
            return
        asked = partition.ask(self.me, max_bytes=self.world.rng.choice((1, 300, 4_000)))
        ticket = self.asking[number] = self.world.rng.randrange(1 << 60)

        def done(act: Callable[[], None]) -> None:
            """An answer; that of an earlier question may still come, as from a socket that was not closed in time."""
            act()
            if self.asking.get(number) == ticket:
                del self.asking[number]
                self.later(self.world.rng.choice((0, 0, 20)), lambda: self._fetch(number))

        def timed_out() -> None:
            if self.asking.get(number) == ticket:
                del self.asking[number]
                self._fetch(number)

        self.later(FETCH_TIMEOUT_MS, timed_out)
        life = self.life

        def reply(act: Callable[[], None]) -> None:
            self.world.send(leader, self.node_id, lambda: done(act) if self.life == life else None)

        other = self.world.nodes[leader]
        self.world.send(self.node_id, leader, lambda: other.serve(number, asked, partition, reply))

    def serve(
        self, number: int, asked: ReplicaFetch, follower: Replica, reply: Callable[[Callable[[], None]], None]
    ) -> None:
        """Answer a follower. ``follower`` is its partition, to do at its place what the answer says."""
        partition = self.partitions[number]
        try:
            answer = partition.serve_replica(asked, self.brokers, self.world.now)
        except OffsetOutOfRangeError:
            start, end = partition.log.log_start_offset, partition.log.log_end_offset
            epoch = asked.leader_epoch
            reply(lambda: follower.out_of_range(start, end) if follower.leader_epoch == epoch else None)
            return
        except (NotLeaderError, FencedLeaderEpochError, UnknownLeaderEpochError):
            self.world.at(50, lambda: reply(lambda: None))
            return
        data = b"" if answer.records is None else answer.records.read()
        answer = ReplicaAnswer(answer.diverging, None, answer.high_watermark, answer.log_start_offset)
        self.advanced(number)
        if answer.diverging is None:
            reader = self.world.nodes[asked.node_id]
            self.later(0 if data else 30, lambda: reply(lambda: reader.take(number, asked, answer, data)))
        else:
            reply(lambda: follower.take(asked, answer, b""))

    def take(self, number: int, asked: ReplicaFetch, answer: ReplicaAnswer, data: bytes) -> None:
        """An answer that does not speak of another history: from here on the log is a part of the leader's."""
        replica = self.partitions[number]
        if asked.leader_epoch == replica.leader_epoch and asked.offset == replica.log.log_end_offset:
            self.agreeing.add(number)
        replica.take(asked, answer, data)

    # Leading

    def _check_isr(self) -> None:
        if self.me is None:
            return
        for number, partition in self.partitions.items():
            self._propose(number, partition)
        self.later(LAG_MS // 2, self._check_isr)

    def _propose(self, number: int, partition: Replica) -> None:
        proposed = partition.propose_isr(self.brokers, self.world.now)
        if proposed is None:
            return
        progress = partition.progress
        assert progress is not None
        name, version = partition_name(self.world.topic.topic_id, number), progress.version
        self.world.note("propose", self.node_id, number, proposed.isr)

        def answered(found: Any) -> None:
            if partition.progress is not progress or progress.proposed is not proposed:
                return
            if isinstance(found, RefusedError):
                progress.refused()
            elif found is not None:
                self._apply(number, Stored(proposed, found))
            else:
                self._read_again(number, partition)

        self.world.ask_store(self.node_id, lambda: self.world.store.cas(name, proposed, version), answered)

    def _read_again(self, number: int, partition: Replica) -> None:
        """Nobody knows whether our change was written: see what is there (KAFKA-2729)."""
        name = partition_name(self.world.topic.topic_id, number)

        def found(value: Any) -> None:
            progress = partition.progress
            if progress is None or progress.proposed is None:
                return
            if value is None:
                self._read_again(number, partition)
            elif value[1] == progress.version:
                progress.refused()  # it was read after the change: that was never written
            else:
                self._apply(number, Stored(*value))

        self.world.ask_store(self.node_id, lambda: self.world.store.values.get(name), found)

    def advanced(self, number: int) -> None:
        """After the high watermark may have moved: answer producers, and see who may join."""
        partition = self.partitions[number]
        partition.advance(self.brokers, self.world.now)
        self.desk.answer(number)
        if partition.progress is not None:
            self._propose(number, partition)
