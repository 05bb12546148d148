"""Who kills, pauses, stops and cuts off the brokers of a simulated world, and takes their disks and clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from seglog.cluster.election import choose
from seglog.cluster.formats import FIRST, OURS, Formats
from seglog.cluster.model import NO_LEADER, PartitionState, partition_name
from seglog.core.errors import InvalidLogDirError
from seglog.storage.directory.cluster_mark import read_marks
from seglog.storage.formats.paths import META_PROPERTIES as META
from tests.replication.disk import PATHS, Contents
from tests.replication.simulator import view_of
from tests.replication.store import Copy, WentBackError

if TYPE_CHECKING:
    from tests.replication.node import Node
    from tests.replication.simulator import World

_HOUR_MS = 3_600_000
RELEASES = (FIRST, OURS, OURS, Formats(1, 3), Formats(2, 3))
_DISK_SIZES = (None, 1 << 20, 1 << 22)


class Nemesis:
    """Data is lost only where another replica that has everything keeps it: more is not promised to survive. Where an
    unclean election is allowed, data may be lost anywhere."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_on = True
        self.struck: dict[str, int] = {}
        faults = world.faults
        self._begin(faults.crash_every, self._kill)
        self._begin(faults.power_every, self._cut_power)
        self._begin(faults.pause_every, self._pause)
        self._begin(faults.cut_every, self._cut)
        self._begin(faults.expire_every, self._expire)
        self._begin(faults.stop_every, self._stop)
        self._begin(faults.disk_every, self._fail_disk)
        self._begin(faults.clock_every, self._set_clock)
        self._begin(faults.away_every, self._take_store_away)
        self._begin(faults.fill_every, self._fill_disk)
        if faults.install_every:
            world.store.format = FIRST.high
        if faults.fill_every:
            size = world.rng.choice(_DISK_SIZES)
            for node in world.nodes.values():
                node.disk.limit(size)
        self._begin(faults.blackout_every, self._black_out)
        if faults.put_back_every:  # replaced disks besides would be more than is promised to survive
            faults.tamper_every = faults.install_every = 0
        self._copies: list[Copy] = []
        self._begin(faults.put_back_every, self._put_store_back)
        self._begin(faults.tamper_every, self._tamper)
        self._begin(faults.mistake_every, self._mistake_directory)
        self._begin(faults.install_every, self._install)
        self._begin(faults.choose_every, self.choose_leaders)
        self._backups: dict[int, tuple[int, Contents]] = {}
        """Of each broker the number of the store's counter, and what its disks had then."""

    def _begin(self, every: int, act: Callable[[], None]) -> None:
        if every:
            self.world.at(self.world.rng.randrange(every), lambda: self._strike(every, act))

    def _strike(self, every: int, act: Callable[[], None]) -> None:
        if self.is_on:
            act()
            self.world.at(self.world.rng.randrange(1, 2 * every), lambda: self._strike(every, act))

    def _anyone(self) -> Node:
        return self.world.nodes[self.world.rng.choice(sorted(self.world.nodes))]

    def _note(self, what: str) -> None:
        self.struck[what] = self.struck.get(what, 0) + 1

    def _start_later(self, node: Node) -> None:
        self.world.at(self.world.rng.choice((10, 500, 5_000)), node.start)

    def _kill(self) -> None:
        node = self._anyone()
        if node.is_up:
            self._note("kill")
            node.crash(power=False)
            self._start_later(node)

    def _cut_power(self) -> None:
        node = self._anyone()
        if (node.is_up or not node.disk.was_closed) and not self._may_lose(node):
            return
        self._note("power cut")
        node.crash(power=True)
        self._start_later(node)

    def _may_lose(self, node: Node) -> bool:
        """Whether every partition has been made, fewer than min.insync.replicas have lost something then, and every one
        is safe with another."""
        nodes, states = self.world.nodes.values(), self.world.history.states.values()
        losing = 1 + sum(self.world.is_losing(other) for other in nodes if other is not node)
        if self.world.scenario.unclean:
            return True
        return len(states) == self.world.scenario.partitions and all(
            losing < min(state.needed, self.world.min_insync) and self._is_safe_without(node, state) for state in states
        )

    def _is_safe_without(self, node: Node, state: PartitionState) -> bool:
        members = [member for member in (*state.isr, *state.elr) if member.node_id != node.node_id]
        for member in members:
            other = self.world.nodes[member.node_id]
            if other.kept_since is not None and other.kept_since <= member.epoch and not other.disk.has_lost:
                return True
        return False

    def _pause(self) -> None:
        node = self._anyone()
        if node.is_up and not node.is_paused:
            self._note("pause")
            self.world.note("pause", node.node_id)
            node.pause(self.world.rng.choice((300, 2_000, 6_000)))

    def _cut(self) -> None:
        link = self.world.faults.cut()
        self._note("cut")
        self.world.note("cut", link)
        self.world.at(self.world.rng.choice((500, 4_000)), lambda: self.world.faults.cuts.discard(link))

    def _expire(self) -> None:
        leases = sorted(self.world.store.leases)
        if leases and not self.world.faults.is_away_for_all:
            self._note("session lost")
            self.world.store.end_session(self.world.rng.choice(leases))

    def _take_store_away(self) -> None:
        """For all brokers, for some, for one that leads or one that follows; for up to five sessions."""
        world = self.world
        if world.faults.away:
            return
        nodes = sorted(world.nodes)
        number = world.rng.choice((len(nodes), len(nodes), 1, 1, 2))
        chosen = world.rng.sample(nodes, number)
        state = world.history.states.get(0)
        if number == 1 and state is not None and state.leader >= 0 and world.rng.random() < 0.5:
            chosen = [state.leader]
        self._note("store away for all" if number == len(nodes) else "store away for some")
        world.store.leave(chosen)
        world.at(world.rng.choice((2_500, 6_000, 15_000)), world.store.come_back)

    def _stop(self) -> None:
        """A controlled shutdown; the broker is there again after a while, however it has ended."""
        node = self._anyone()
        if node.me is not None and not node.is_stopping:
            self._note("controlled shutdown")
            later = 2_500 + self.world.rng.choice((10, 500, 5_000))

            def stop() -> None:  # one that is paused stops when it goes on
                node.stop()
                self.world.at(later, node.start)

            node.when_running(stop)
            self.world.at(later, node.start)

    def _fail_disk(self) -> None:
        """One directory of a broker takes no write any more; later somebody puts in another disk, and starts anew."""
        node = self._anyone()
        if not node.is_up or node.disk.failed or not self._may_lose(node):
            return
        path = self.world.rng.choice(PATHS)
        self._note("disk failed")
        self.world.note("disk", node.node_id, path)
        node.disk.fail(path)
        life = node.life

        def replace() -> None:
            if node.life == life:
                node.crash(power=False)
            node.start()

        self.world.at(self.world.rng.choice((1_000, 5_000)), replace)

    def _fill_disk(self) -> None:
        """The disks of one broker, or of all, take no more than a little; later they are enlarged."""
        world = self.world
        is_for_all = world.rng.random() < 0.25
        nodes = list(world.nodes.values()) if is_for_all else [self._anyone()]
        self._note("all disks full" if is_for_all else "disk full")
        for node in nodes:
            if not node.disk.is_filled:
                room = world.rng.choice((0, 200, 2_000, 10_000))
                world.note("full", node.node_id, room)
                node.disk.fill(room)
                world.at(world.rng.choice((1_000, 4_000, 12_000)), node.disk.enlarge)

    def _set_clock(self) -> None:
        """The wall clock of one broker is set, as an operator or NTP may."""
        node = self._anyone()
        self._note("clock set")
        node.clock.set_wall(node.clock.now_ms() + self.world.rng.choice((-_HOUR_MS, -1_000, 1_000, _HOUR_MS)))

    # Operators, and the power company

    def _black_out(self) -> None:
        """All machines lose their power at once. Unless all is flushed that is more than is promised to survive."""
        self._note("blackout")
        for node in self.world.nodes.values():
            node.crash(power=True)
            self._start_later(node)
        self.world.history.blackouts += not self.world.scenario.flushed

    def _tamper(self) -> None:
        """Do something to the disks of one broker, which is down or killed for it."""
        node, store = self._anyone(), self.world.store
        if node.is_up:
            node.crash(power=False)
        backup = self._backups.get(node.node_id)
        what = self.world.rng.choice(("empty", "back up", "back up", "restore", "restore", "swap"))
        if what == "restore" and (backup is None or store.lives.get(node.node_id, 0) <= backup[0]):
            what = "back up"
        self._note(what)
        self.world.note(what, node.node_id)
        if what == "empty":
            node.disk.put({}, store.count)
        elif what == "back up":
            self._backups[node.node_id] = (store.count, node.disk.copy())
        elif what == "restore" and backup is not None:
            node.disk.put(backup[1], store.count)
        else:
            self._swap(node)
        self._start_later(node)

    def _swap(self, node: Node) -> None:
        """Two brokers get each other's disks, do not start, and get their own ones back."""
        other = self._anyone()
        if other is node:
            return
        if other.is_up:
            other.crash(power=False)
        mine, theirs = node.disk.copy(), other.disk.copy()
        before = [(one.disk.emptied_at, one.disk.has_lost) for one in (node, other)]
        for one, contents in ((node, theirs), (other, mine)):
            one.disk.put(contents, self.world.store.count)
            one.start()
            is_known = any(path.endswith(META) for path in contents)
            assert not one.is_up or not is_known, f"{one.node_id} has started with the disks of another broker"
        for one, contents, (emptied_at, has_lost) in zip((node, other), (mine, theirs), before, strict=True):
            if one.is_up:
                one.crash(power=False)
            one.disk.put(contents, emptied_at)
            one.disk.has_lost = has_lost
            one.disk.fs.kill()
        self._start_later(other)

    def _mistake_directory(self) -> None:
        """Start a broker that is down with another's number, or for another cluster. P19: it is refused, and writes
        nothing."""
        node, rng = self._anyone(), self.world.rng
        cluster_id, node_id = rng.choice((("c", node.node_id + 1), ("d", node.node_id)))
        if node.is_up or not node.disk.is_marked or node.disk.failed:
            return
        self._note("wrong flags")
        before = node.disk.fs.files()
        try:
            node.disk.open_as(cluster_id, node_id, rng)
        except InvalidLogDirError:
            pass
        else:
            raise AssertionError(f"P19: {node.node_id} is served as node {node_id} of cluster {cluster_id}")
        assert node.disk.fs.files() == before, f"P19: who was refused has written to the directories of {node.node_id}"

    def _put_store_back(self) -> None:
        """Copy the store; or stop all brokers, put an older copy back, and accept it when they have refused it."""
        world, store = self.world, self.world.store
        if world.faults.away:
            return
        if not self._copies or world.rng.random() < 0.5:
            if len(world.history.states) == world.scenario.partitions:
                self._copies.append(store.copy())
            return
        copy, latest = world.rng.choice(self._copies), store.generation
        self._note("store put back")
        nodes = world.nodes.values()
        noted = [node for node in nodes if node.shut_down()]
        world.note("put back", copy.raised, latest)
        store.put_back(copy)
        for node in noted if store.generation < latest else ():
            try:
                store.check_history(node.node_id, read_marks(node.disk.fs, PATHS), ())
            except WentBackError:
                continue
            raise AssertionError(f"P21: {node.node_id} has seen generation {latest}, and takes {store.generation}")
        former = dict(world.history.states)
        store.accept()  # the copies are kept: one may be put back a second time
        for number, state in former.items():
            world.history.accepted(number, state)
        for node in nodes:
            self._start_later(node)

    def _install(self) -> None:
        """Another release on one broker, or a later format for the cluster, if all that are registered speak it."""
        world = self.world
        if world.rng.random() < 0.4:
            to = world.store.format + 1
            if not world.faults.is_away_for_all and world.store.raise_format(to):
                self._note("format raised")
            return
        node = self._anyone()
        self._note("release installed")
        node.crash(power=False)
        node.speaks = world.rng.choice(RELEASES)
        world.note("release", node.node_id, node.speaks)
        self._start_later(node)

    def choose_leaders(self, *, also_leaderless: bool = True) -> None:
        """`seglog cluster choose-leader`, where a replica refuses to cut, or a partition has no leader."""
        world = self.world
        view = view_of(world.store.values)
        for (topic_id, number), (state, version) in sorted(view.partitions.items()):
            refusals = [one.node_id for one in state.evidence if one.refused_cut >= 0]
            if not (also_leaderless if state.leader == NO_LEADER else refusals):
                continue
            there = [node for node in state.replicas if node in view.brokers and not view.brokers[node].is_stopping]
            if state.leader == NO_LEADER:
                ends = {one.node_id: (one.last_epoch, one.end) for one in state.evidence}
                nodes = sorted((node for node in there if node in ends), key=ends.__getitem__)[-1:]
                if not any(view.brokers[node].reports for node in there):  # nothing more is to be learnt
                    nodes = there
            else:
                nodes = [node for node in (state.leader, *refusals) if node in there]
            if nodes:
                self._note("choose")
                node = world.rng.choice(nodes)
                world.store.cas(partition_name(topic_id, number), choose(state, node, view.brokers), version)
