"""One broker of a simulated world: what `seglog.broker` does around the decisions, without a socket or a loop.

Its life: start (recover the disks, ask the store for an epoch, register), hold the replicas that it is given, lead or
follow them, renew its session, and be the controller when nobody is. Then it is killed, paused, stopped or cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from seglog.cluster.formats import FIRST, OURS
from seglog.cluster.model import (
    NO_LEADER,
    BrokerRegistration,
    Member,
    PartitionState,
    VersionedState,
    broker_name,
    of_partition,
    offline_name,
    partition_name,
)
from seglog.core.errors import InvalidLogDirError, LogClosedError, LogDirFullError, LogDirOfflineError, SeglogError
from seglog.core.types import TopicPartition
from seglog.replication.replica import Replica
from seglog.storage.directory.catalog import ReplicaSpec
from seglog.storage.directory.cluster_mark import read_marks
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.log import Log
from seglog.testing.clock import ManualClock
from tests.replication.desk import Desk
from tests.replication.disk import PATHS, Disk
from tests.replication.leadership import Leadership
from tests.replication.office import Office
from tests.replication.reader import Readers
from tests.replication.sessions import Sessions
from tests.replication.simulator import LAG_MS, TOPIC, topic_rules
from tests.replication.store import SESSION_MS, LogEpoch, RefusedError, WentBackError, WrongFormatError

if TYPE_CHECKING:
    from tests.replication.simulator import World

_HOUSEKEEPING_MS = 500


class Node:
    """A broker and its disks; the disks outlive its lives."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.clock = ManualClock()
        self.disk = Disk(self.clock, world.scenario, node_id)
        self.kept_since: int | None = None
        self.speaks = OURS
        """The formats of the release that is installed."""
        self.life = 0
        self.is_up = False
        self._paused_until = 0
        self.woken_ms = 0
        """When it was last paused until."""
        self._waiting: list[Callable[[], None]] = []
        self._forget()
        world.at(world.rng.randrange(50), self.start)

    def _forget(self) -> None:
        self.values: dict[str, tuple[Any, int]] = {}
        self.partitions: dict[int, Replica] = {}
        self.offline: set[int] = set()
        self.away: set[int] = set()
        self.no_room: set[int] = set()
        """As `seglog.replication.replicas.Replicas` has them, of a full disk."""
        self.before: set[int] | None = None
        self.is_stopping = False
        self.me: Member | None = None
        self.session: int | None = None
        self.renewed_ms = 0
        self.has_resigned = False
        self.in_doubt = False
        self._flushing: set[Replica] = set()
        self.agreeing: dict[int, int] = {}
        """Of each partition the epoch in which its log was last known to be a part of the leader's."""
        self._early: list[tuple[str, Any, int]] = []
        self._entering: int | None = None  # the session whose changes are told to us
        self.office = Office(self)
        self.desk = Desk(self)
        self.leadership = Leadership(self)
        self.readers = Readers(self)
        self.sessions = Sessions(self)

    # Life and death

    def start(self) -> None:
        if self.is_up:
            return
        self._catch_up()
        self.disk.replace_failed()
        try:
            self.directories = self.disk.open(self.world.rng)
        except InvalidLogDirError:  # the disks of another broker
            self.world.note("not ours", self.node_id)
            return
        except LogDirFullError:
            self.world.note("no room", self.node_id)
            self.disk.fs.kill()
            self.world.at(1_000, self.start)
            return
        self.is_up = True
        self.life += 1
        self._forget()
        self.directories.failed = lambda directory, _: self.later(0, lambda: self._directory_failed(directory))
        for one in self.directories.dirs:
            one.health.on_full = partial(self.later, 0, partial(self._room_changed, one))
        self.later(_HOUSEKEEPING_MS, self._keep_house)
        if self.world.faults.put_back_every:
            self.later(2_000, self._note_history)
        self._register()

    def crash(self, *, power: bool) -> None:
        """Killed; with ``power`` what was not flushed is gone too, also if it had been killed before."""
        self.world.note("crash", self.node_id, power)
        if self.is_up:
            self._end()
            self.disk.fs.kill()
        if power:
            self.disk.cut_power(self.world.rng)

    def _end(self) -> None:
        self.is_up = False
        self._paused_until = 0
        self.life += 1
        self._waiting.clear()
        self.world.store.readers.pop(self.node_id, None)
        for number in self.partitions:
            self.desk.give_up(number)
        self._forget()

    def stop(self) -> None:
        """A controlled shutdown: others lead first, then the directories are closed."""
        if self.me is None or self.is_stopping:
            return
        self.world.note("stop", self.node_id)
        self.is_stopping = True
        self.update_registration()
        until = self.world.now + 2_000

        def look() -> None:
            if self.world.now < until and any(partition.leads for partition in self.partitions.values()):
                self.later(50, look)
                return
            session, directories = self.session, self.directories
            self._end()
            try:
                self.disk.close(directories)
            except LogDirOfflineError:
                self.disk.fs.kill()
            if session is not None and self.node_id not in self.world.faults.away:
                self.world.at(self.world.faults.store_delay(), lambda: self.world.store.end_session(session))

        look()

    @property
    def reports(self) -> bool:
        """The first release does not know of evidence."""
        return self.speaks.high > FIRST.high

    @property
    def is_paused(self) -> bool:
        return self.world.now < self._paused_until

    def pause(self, milliseconds: int) -> None:
        if self.is_up:
            self._paused_until = max(self._paused_until, self.world.now + milliseconds)
            self.world.at(milliseconds, self._wake)

    def resume(self) -> None:
        self._paused_until = 0
        self._wake()

    def _wake(self) -> None:
        if not self.is_paused:
            self.woken_ms = self.world.now
        while self._waiting and not self.is_paused:
            waiting, self._waiting = self._waiting, []
            for act in waiting:
                self.when_running(act)

    def when_running(self, act: Callable[[], None]) -> None:
        """Now; later if it is paused; never if it is dead."""
        if not self.is_up:
            return
        if self.is_paused:
            self._waiting.append(act)
            return
        self.world.touched.add(self.node_id)
        self._catch_up()
        if self.world.faults.disk_slow:
            before = self.disk.syncs
            act()
            if self.disk.syncs > before:
                self.pause(self.world.faults.fsync_delay())
        else:
            act()

    def _catch_up(self) -> None:
        self.clock.advance(max(0, self.world.now - int(self.clock.monotonic() * 1000)))

    def later(self, delay: int, act: Callable[[], None]) -> None:
        life = self.life

        def then() -> None:
            if self.life == life:
                self.when_running(act)

        self.world.at(delay, then)

    def _keep_house(self) -> None:
        self.directories.housekeeping()
        for one in self.directories.dirs:
            self._room_changed(one)
        self.later(_HOUSEKEEPING_MS, self._keep_house)

    def _register(self) -> None:
        """A new epoch, written down before anybody knows of it; then the session, then the cluster."""
        store = self.world.store
        self._early.clear()

        marks, epochs = read_marks(self.disk.fs, PATHS), list(self._log_epochs())

        def ask() -> int:
            store.check_history(self.node_id, marks, epochs)
            store.check_format(self.speaks)
            return store.next_number()

        def numbered(epoch: Any) -> None:
            if isinstance(epoch, (WrongFormatError, WentBackError)):
                self._end_refused()
                return
            if epoch is None:
                self.later(100, self._register)
                return
            try:
                self.kept_since = self.directories.kept_since(epoch, store.lives.get(self.node_id))
            except LogDirOfflineError:  # none is left: a broker ends then
                self.crash(power=False)
                return
            except LogDirFullError:
                self.later(1_000, self._register)
                return
            self.disk.has_lost = bool(self.disk.failed)
            wanted = BrokerRegistration(
                node_id=self.node_id, epoch=epoch, kept_since=self.kept_since, reports=self.reports
            )
            broker = self._registration(wanted)
            self.world.ask_store(self.node_id, lambda: self._enter(broker), lambda found: self._entered(broker, found))

        self.world.ask_store(self.node_id, ask, numbered)

    def _log_epochs(self) -> Iterator[LogEpoch]:
        for partition, log in self.directories.logs.items():
            yield self.world.topic.topic_id, partition.partition, log.path, log.epochs.latest

    def _note_history(self) -> None:
        """As `SeenGenerations` does: now and then, and at the end."""
        store = self.world.store

        def noted(generation: Any) -> None:
            if generation is not None and not isinstance(generation, RefusedError):
                self._write_history(generation)

        if self.me is not None:
            self.world.ask_store(self.node_id, lambda: store.note_seen(self.node_id), noted)
        self.later(2_000, self._note_history)

    def _write_history(self, generation: int) -> None:
        if self.me is not None:
            with suppress(LogDirFullError):
                self.directories.note_history(generation=generation, broker_epoch=self.me.epoch)

    def shut_down(self) -> bool:
        """End, as a controlled shutdown does while others end too; whether it has noted how far the store has come."""
        store = self.world.store
        may_note = self.me is not None and self.session in store.leases and not self.is_paused and not self.disk.failed
        if may_note:
            self._write_history(store.note_seen(self.node_id))
        self.crash(power=False)
        return may_note and not self.disk.is_filled

    def _end_refused(self) -> None:
        """Whoever restarts it does so until another release is installed, or the store accepted."""
        self.world.note("refused", self.node_id, self.speaks)
        self.crash(power=False)
        self.world.at(1_000, self.start)

    def _registration(self, broker: BrokerRegistration) -> BrokerRegistration:
        offline = tuple(offline_name(self.world.topic.topic_id, number) for number in sorted(self.offline | self.away))
        return replace(broker, is_stopping=self.is_stopping, offline=offline)

    def update_registration(self) -> None:
        """Have it say what is so now, if it takes some tries."""
        me, name, store = self.me, broker_name(self.node_id), self.world.store

        def write() -> None:
            found = store.values.get(name)
            if me is None or found is None or found[0].epoch != me.epoch:
                raise RefusedError(name)
            store.cas(name, self._registration(found[0]), found[1])

        def written(found: Any) -> None:
            gone = isinstance(found, RefusedError)
            if (found is None or not self._is_registered_so()) and not gone and self.me == me:
                self.later(100, self.update_registration)

        self.world.ask_store(self.node_id, write, written)

    def _is_registered_so(self) -> bool:
        found = self.world.store.values.get(broker_name(self.node_id))
        return found is not None and found[0] == self._registration(found[0])

    def _enter(self, broker: BrokerRegistration) -> Any:
        """In the store: our former registration is over, this one begins, and we read everything.

        Not if a later one is there: a call of our last life may have been long on its way.
        """
        store = self.world.store
        store.check_format(self.speaks)
        former = store.values.get(broker_name(self.node_id))
        if former is not None and former[0].epoch > broker.epoch:
            raise RefusedError("a later life")
        store.remove(broker_name(self.node_id))
        session = store.open_session(self.node_id)
        store.create(broker_name(self.node_id), broker, session)
        store.lives[self.node_id] = broker.epoch
        self._early.clear()
        self._entering = session

        def told(name: str, value: Any, version: int) -> None:
            self.when_running(lambda: self._told(name, value, version) if self._entering == session else None)

        return session, store.subscribe(self.node_id, told)

    def _entered(self, broker: BrokerRegistration, found: Any) -> None:
        if isinstance(found, WrongFormatError):
            self._end_refused()
            return
        if found is None or isinstance(found, RefusedError):
            self.later(100, self._register)
            return
        self.session, self.values = found
        self.me = Member(self.node_id, broker.epoch)
        self.world.history.entered(self.node_id, self.life, broker.epoch)
        self.renewed_ms = self.world.now
        self.office.resign()
        self.has_resigned = self.in_doubt = False
        if self.before is None:
            self.before = {int(name.rsplit("/", 1)[1]) for name in self.values if name.startswith("partitions/")}
        early, self._early = self._early, []
        for change in early:
            self._told(*change)
        self._apply_all()
        self._renew(self.session)
        self.office.look()
        self.later(LAG_MS // 2, self.leadership.check_isr)
        self.readers.look_all()
        if not self._is_registered_so():
            self.update_registration()

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
                if self.in_doubt and self.world.now - self.renewed_ms <= SESSION_MS * 2 // 3:
                    self._trust()

        self.world.ask_store(self.node_id, lambda: self.world.store.renew(session), renewed)
        if self.world.now - self.renewed_ms > SESSION_MS * 2 // 3 and not self.has_resigned:
            self._doubt()
        self.later(SESSION_MS // 5, lambda: self._renew(session))

    def _doubt(self) -> None:
        """As `seglog.replication.replicas` does: go on with what is safe whoever else was elected. Told again and again
        while the session is in doubt."""
        self.in_doubt = True
        self.office.resign()
        for number, partition in self.partitions.items():
            partition.doubt()
            self._weigh(number, partition)

    def _weigh(self, number: int, partition: Replica) -> None:
        rules = topic_rules(self.values[f"topics/{TOPIC}"][0])
        if partition.weigh(self.world.now, unclean=rules.unclean, silence_ms=LAG_MS // 3):
            self.desk.answer(number)
            self.leadership.advanced(number)

    def _trust(self) -> None:
        """The session has lived all the time."""
        self.in_doubt = False
        for number, partition in self.partitions.items():
            if partition.trust():
                self.leadership.advanced(number)
        self._apply_all()
        self.office.look()

    def _resign(self) -> None:
        """Nobody may rely on us: our session is over."""
        self.has_resigned, self.in_doubt = True, False
        self.office.resign()
        for number, partition in self.partitions.items():
            partition.resign()
            self.desk.give_up(number)

    def _lose_session(self) -> None:
        self._resign()
        self.me = self.session = None
        self.world.store.readers.pop(self.node_id, None)
        self._register()

    def _told(self, name: str, value: Any, version: int) -> None:
        if self.me is None:
            self._early.append((name, value, version))
            return
        found = self.values.get(name)
        if isinstance(value, PartitionState):
            self.note(name, value, version)
        elif value is None:
            self.values.pop(name, None)
        elif found is None or found[1] < version or name.startswith(("brokers/", "controller")):
            self.values[name] = (value, version)
        if name == "controller":
            self.office.look()
        self.office.act()
        if self.me is not None:
            for number in list(self.partitions):
                self.leadership.advanced(number)

    def note(self, name: str, state: PartitionState, version: int) -> None:
        """A partition's state that we were told, or have written: what we see never goes back."""
        found = self.values.get(name)
        if found is None or found[1] < version:
            self.values[name] = (state, version)
            number = int(name.rsplit("/", 1)[1])
            if number in self.away and state.leader == NO_LEADER:
                self.away.discard(number)
                self.update_registration()
            self.apply(number, VersionedState(state, version))

    @property
    def brokers(self) -> dict[int, BrokerRegistration]:
        return {value.node_id: value for value, _ in self.values.values() if isinstance(value, BrokerRegistration)}

    def _apply_all(self) -> None:
        for name, (value, version) in sorted(self.values.items()):
            if isinstance(value, PartitionState):
                self.apply(int(name.rsplit("/", 1)[1]), VersionedState(value, version))

    def apply(self, number: int, stored: VersionedState) -> None:
        """Take up a partition's state, as `seglog.replication.replicas` does."""
        if self.me is None or self.has_resigned or number in self.offline | self.away:
            return
        if self.node_id not in stored.state.replicas:
            self._let_go(number, stored.state)
            return
        partition = self.partitions.get(number) or self._hold(number)
        if partition is None:
            return
        if self.in_doubt:
            partition.doubt()
        try:
            is_new = partition.apply(stored, self.me, self.brokers, self.world.now, lag_max_ms=LAG_MS)
        except SeglogError as error:
            if isinstance(error, LogDirFullError):
                self.no_room.add(number)
            partition.resign()
            self.desk.give_up(number)
            return
        if is_new:
            leads = partition.progress is not None
            self.world.note("role", self.node_id, number, partition.leader_epoch, leads)
            if leads:
                self.agreeing[number] = partition.leader_epoch
                self.world.history.leads(number, partition.leader_epoch, self.me, partition.log)
            else:
                self.desk.give_up(number)
        if self.in_doubt:
            self._weigh(number, partition)
        self.readers.look()
        self.leadership.advanced(number)
        self.report(number)

    def report(self, number: int) -> None:
        """What this replica has, if it is asked (`seglog.replication.evidence_reports`)."""
        name = partition_name(self.world.topic.topic_id, number)
        partition, found = self.partitions.get(number), self.values.get(name)
        is_certain = not self.has_resigned and not self.in_doubt
        if partition is None or found is None or self.me is None or not is_certain or not self.reports:
            return
        kept = self.directories.kept(partition.topic_partition)
        state = None if kept is None else partition.report(VersionedState(*found), self.me, kept)
        if state is None:
            return
        version = found[1]

        def written(answer: Any) -> None:
            if answer is None:  # nobody knows
                self.later(200, lambda: self.report(number))
            elif not isinstance(answer, RefusedError):
                self.note(name, state, answer)

        self.world.ask_store(self.node_id, lambda: self.world.store.cas(name, state, version), written)

    def _cut_refused(self, replica: Replica) -> None:
        number = replica.topic_partition.partition
        self.world.note("refused", self.node_id, number, replica.refused_cut)
        self.world.history.cut_refused(self.node_id, number, replica)
        self.later(0, lambda: self.report(number))

    def _hold(self, number: int) -> Replica | None:
        key = TopicPartition(TOPIC, number)
        is_new = self.before is not None and number not in self.before
        wanted = ReplicaSpec(TOPIC, self.world.topic.topic_id, number, {}, is_new=is_new)
        (log,) = self.directories.hold_many([wanted])
        if not isinstance(log, Log):
            self.offline.add(number)
            self.update_registration()
            if isinstance(log, LogDirFullError):
                self.later(LAG_MS // 2, lambda: self._hold_again(number))
            return None
        directory = self.directories.dir_of(key)
        replica = Replica(directory, key, self.world.topic.topic_id, log, flush_due=self.flush_later)
        self.partitions[number] = replica
        replica.refused = self._cut_refused
        return replica

    def flush_later(self, partition: Replica) -> None:
        """As `seglog.replication.group_flushes` does for leaders, and a fetcher before it asks again."""
        if partition in self._flushing:
            return
        self._flushing.add(partition)

        def flush() -> None:
            self._flushing.discard(partition)
            with suppress(LogDirOfflineError, LogDirFullError, LogClosedError):
                partition.log.flush()
                partition.flushed()
            number = partition.topic_partition.partition
            if self.partitions.get(number) is partition:
                self.leadership.advanced(number)
                self.readers.look()

        self.later(self.world.faults.flush_delay(), flush)

    def _hold_again(self, number: int) -> None:
        """After the disk was full."""
        name = partition_name(self.world.topic.topic_id, number)
        self.offline.discard(number)
        if name in self.values:
            self.apply(number, VersionedState(*self.values[name]))
        self.update_registration()

    def _room_changed(self, directory: LogDir) -> None:
        """As `Replicas.room_changed`: others lead what they have in sync while our disk is full."""
        before, is_full = self.away.copy(), directory.health.full is not None
        for number, replica in list(self.partitions.items()):
            if replica.directory is not directory:
                continue
            if is_full and number not in self.away and self._has_room_elsewhere(number):
                self.away.add(number)
                replica.resign()
                self.desk.give_up(number)
            elif not is_full and number in self.away | self.no_room:
                self.away.discard(number)
                self.no_room.discard(number)
                self.apply(number, VersionedState(*self.values[partition_name(self.world.topic.topic_id, number)]))
        if self.away != before:
            self.update_registration()

    def _has_room_elsewhere(self, number: int) -> bool:
        found = self.values.get(partition_name(self.world.topic.topic_id, number))
        there = of_partition(self.brokers, (self.world.topic.topic_id, number))
        return found is not None and any(
            node != self.node_id and node in there and not there[node].is_stopping for node in found[0].isr_nodes
        )

    def _let_go(self, number: int, state: PartitionState) -> None:
        """We are no replica any more: delete the log if the state says so, else keep it as a stray."""
        key = TopicPartition(TOPIC, number)
        if number in self.partitions:
            self._give_back(number)
        if key not in self.directories.found():
            return
        log = self.directories.logs.get(key)
        with suppress(LogDirFullError):  # it is tried again at the next start
            if log is not None and state.names_removal(log.epochs.latest):
                self.world.note("let go", self.node_id, number)
                self.world.history.removes(self.node_id, number, log)
                self.directories.let_go(key)
            else:
                self.world.note("set aside", self.node_id, number)
                self.world.strays += 1
                self.directories.set_aside([key])

    def _directory_failed(self, directory: LogDir) -> None:
        """Serve nothing of it any more. P19: a full disk is not a failed one."""
        assert directory.path in self.disk.failed, f"P19: {self.node_id} gives up {directory}"
        self.world.note("offline", self.node_id, directory.path)
        for number in [number for number, one in self.partitions.items() if one.directory is directory]:
            self.offline.add(number)
            self._give_back(number)
        self.update_registration()

    def _give_back(self, number: int) -> None:
        self.partitions.pop(number).resign()
        self.away.discard(number)
        self.no_room.discard(number)
        self.agreeing.pop(number, None)
        self.desk.give_up(number)
