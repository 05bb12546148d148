"""Who kills, pauses, stops and cuts off the brokers of a simulated cluster, and takes their disks and clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from seglog.cluster.backup import CLUSTER, accepted, take_backup
from seglog.cluster.election import choose
from seglog.cluster.formats import FIRST, FORMAT, OURS, FormatError, Formats, raise_format
from seglog.cluster.model import NO_LEADER, RAISED, PartitionState, encode, generation_of, partition_name
from seglog.cluster.store import MISSING, Change, VersionedValue, in_commits
from seglog.storage.formats.paths import META_PROPERTIES as META
from tests.kit.virtual_broker import CLUSTER_ID
from tests.kit.virtual_loop import VirtualClock, VirtualLoop
from tests.kit.virtual_store import VirtualServer, VirtualStore
from tests.simulation.cluster.host import PATHS, Contents

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.host import Host

_HOUR_MS: Final = 3_600_000
RELEASES: Final = (FIRST, OURS, OURS, Formats(1, 3), Formats(2, 3))
_DISK_SIZES: Final = (None, 1 << 20, 1 << 22)
_ANOTHER_ID: Final = "another-cluster-000000"
_LATER: Final = (0.01, 0.5, 5.0)
"""Seconds until a broker is started again."""
_LOOK_SECONDS: Final = 1.5
"""After so long a broker that is to refuse to start has done so."""


class Nemesis:
    """Data is lost only where another replica that has everything keeps it: more is not promised to survive. Where an
    unclean election is allowed, data may be lost anywhere."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.is_on = True
        self.struck: Counter[str] = Counter()
        faults, rng = cluster.faults, cluster.world.rng
        if faults.install_every:  # the cluster is one of the first release
            cluster.server.commit(
                [
                    Change(CLUSTER, b'{"cluster.id": "%s"}' % CLUSTER_ID.encode(), MISSING),
                    Change(FORMAT, b"%d" % FIRST.high, MISSING),
                ]
            )
        if faults.fill_every:
            size = rng.choice(_DISK_SIZES)
            for host in cluster.hosts.values():
                host.limit(size)
        if faults.put_back_every:  # replaced disks besides would be more than is promised to survive
            faults.tamper_every = faults.install_every = 0
        self._operator = VirtualLoop(cluster.world, "seglog cluster")
        self._store = VirtualStore(cluster.server, self._operator, VirtualClock(cluster.world))
        self._copies: list[Mapping[str, VersionedValue]] = []
        self._backups: dict[int, tuple[int, Contents]] = {}
        """Of each broker the epoch of the latest broker, and what its disks had then."""

    def begin(self) -> None:
        """From now on."""
        faults = self.cluster.faults
        for every, act in (
            (faults.crash_every, self._kill),
            (faults.power_every, self._cut_power),
            (faults.pause_every, self._pause),
            (faults.cut_every, self._cut),
            (faults.expire_every, self._expire),
            (faults.stop_every, self._stop),
            (faults.disk_every, self._fail_disk),
            (faults.clock_every, self._set_clock),
            (faults.away_every, self._take_store_away),
            (faults.fill_every, self._fill_disk),
            (faults.blackout_every, self._black_out),
            (faults.put_back_every, self._put_store_back),
            (faults.tamper_every, self._tamper),
            (faults.mistake_every, self._mistake_directory),
            (faults.install_every, self._install),
            (faults.choose_every, self.choose_leaders),
        ):
            self._begin(every / 1000, act)

    def end(self) -> None:
        """Leave no coroutine behind."""
        self._operator.kill()

    def _begin(self, every: float, act: Callable[[], None]) -> None:
        if every:
            self.world.after(self.world.rng.random() * every, lambda: self._strike(every, act))

    def _strike(self, every: float, act: Callable[[], None]) -> None:
        if self.is_on:
            act()
            self.world.after(self.world.rng.random() * 2 * every, lambda: self._strike(every, act))

    def _anyone(self) -> Host | None:
        """A random host, or None if that host is being repaired."""
        host = self.cluster.hosts[self.world.rng.choice(sorted(self.cluster.hosts))]
        return None if host.is_in_repair else host

    def _note(self, what: str, *details: object) -> None:
        self.struck[what] += 1
        self.world.note(what, *details)

    def _start_later(self, host: Host) -> None:
        host.begin_later(self.world.rng.choice(_LATER))

    def _kill(self) -> None:
        host = self._anyone()
        if host is not None and host.is_running:
            self._note("kill", host.host)
            host.crash(power=False)
            self._start_later(host)

    def _cut_power(self) -> None:
        host = self._anyone()
        if host is None or ((host.is_running or not host.was_closed) and not self._may_lose(host)):
            return
        self._note("power cut", host.host)
        host.crash(power=True)
        self._start_later(host)

    def _may_lose(self, host: Host) -> bool:
        """Whether every partition has been made, fewer than min.insync.replicas have lost something then, and every one
        is safe with another."""
        cluster = self.cluster
        losing = 1 + sum(cluster.is_losing(other) for other in cluster.hosts.values() if other is not host)
        if cluster.scenario.unclean:
            return True
        return len(cluster.history.states) == cluster.scenario.partitions and all(
            losing < min(state.needed, cluster.min_insync) and self._is_safe_without(host, state)
            for state in cluster.states()
        )

    def _is_safe_without(self, host: Host, state: PartitionState) -> bool:
        members = [member for member in (*state.isr, *state.elr) if member.node_id != host.node_id]
        for member in members:
            other = self.cluster.hosts[member.node_id]
            if other.kept_since is not None and other.kept_since <= member.epoch and not other.has_lost:
                return True
        return False

    def _pause(self) -> None:
        host = self._anyone()
        if host is not None and host.is_running and not host.is_paused:
            seconds = self.world.rng.choice((0.3, 2.0, 6.0))
            self._note("pause", host.host, seconds)
            host.pause(seconds)

    def _cut(self) -> None:
        """One direction of a link between two brokers, a broker and clients, or a broker's to the store; or only the
        connections that there are."""
        cluster, rng = self.cluster, self.world.rng
        seconds = rng.choice((0.5, 4.0))
        names = [host.host for host in cluster.hosts.values()]
        source, target = rng.sample([*names, "client", "store"], 2)
        ends = list(cluster.network.ends)
        if rng.random() < 0.2 and ends:
            self._note("connection cut")
            cluster.network.cut(rng.choice(ends))
        elif "store" in (source, target):
            host = next((one for one in cluster.hosts.values() if one.host in (source, target)), None)
            if host is not None:
                self._note("store cut", host.host)
                cluster.faults.cuts.add(host.node_id)
                node_id = host.node_id
                self.world.after(seconds, lambda: cluster.faults.cuts.discard(node_id))
        else:
            link = cluster.network.link(source, target)
            self._note("cut", source, target)
            link.is_down = True
            self.world.after(seconds, link.heal)

    def _expire(self) -> None:
        sessions = self.cluster.server.sessions
        if sessions and not self.cluster.server.is_down:
            session = self.world.rng.choice(sessions)
            self._note("session lost", session.host)
            self.cluster.server.end(session)

    def _take_store_away(self) -> None:
        """For all brokers, for some, for one that leads or one that follows; for up to five sessions."""
        cluster, rng = self.cluster, self.world.rng
        if cluster.server.away:
            return
        nodes = sorted(cluster.hosts)
        number = min(rng.choice((len(nodes), len(nodes), 1, 1, 2)), len(nodes))
        chosen = rng.sample(nodes, number)
        state = cluster.history.states.get(0)
        if cluster.scenario.groups and cluster.offsets_state is not None and rng.random() < 0.5:
            state = cluster.offsets_state
        if number == 1 and state is not None and state.leader >= 0 and rng.random() < 0.5:
            chosen = [state.leader]
        is_for_all = number == len(nodes)
        self._note("store away for all" if is_for_all else "store away for some", *chosen)
        cluster.server.go_away([f"n{node}" for node in chosen], for_all=is_for_all)
        self.world.after(rng.choice((2.5, 6.0, 15.0)), cluster.server.come_back)

    def _stop(self) -> None:
        """A controlled shutdown; the broker is there again after a while."""
        host = self._anyone()
        if host is not None and host.is_up and host.me is not None:
            self._note("controlled shutdown", host.host)
            host.restart_seconds = self.world.rng.choice(_LATER)
            host.stop()

    def _fail_disk(self) -> None:
        """One directory of a broker fails all writes; later the disk is replaced and the broker restarted."""
        host = self._anyone()
        if host is None or not host.is_up or host.failed or not self._may_lose(host):
            return
        path = self.world.rng.choice(PATHS)
        self._note("disk failed", host.host, path)
        host.fail(path)
        life = host.life

        def replace() -> None:
            if host.life == life:
                host.crash(power=False)
            host.begin()

        self.world.after(self.world.rng.choice((1.0, 5.0)), replace)

    def _fill_disk(self) -> None:
        """The disks of one broker, or of all, take no more than a little; later they are enlarged."""
        rng = self.world.rng
        is_for_all = rng.random() < 0.25
        hosts = list(self.cluster.hosts.values()) if is_for_all else [self._anyone()]
        self._note("all disks full" if is_for_all else "disk full")
        for host in hosts:
            if host is not None and not host.is_filled:
                room = rng.choice((0, 200, 2_000, 10_000))
                self.world.note("full", host.host, room)
                host.fill(room)
                self.world.after(rng.choice((1.0, 4.0, 12.0)), host.enlarge)

    def _set_clock(self) -> None:
        """The wall clock of one broker is set, as an operator or NTP may."""
        host = self._anyone()
        if host is not None:
            by = self.world.rng.choice((-_HOUR_MS, -1_000, 1_000, _HOUR_MS))
            self._note("clock set", host.host, by)
            host.clock.skew_ms += by

    # Operators, and the power company

    def _black_out(self) -> None:
        """All machines lose their power at once. Unless all is flushed that is more than is promised to survive; and
        with a disk that was replaced just before only operators can say who leads."""
        if not self.cluster.scenario.operators and any(map(self.cluster.is_losing, self.cluster.hosts.values())):
            return
        self._note("blackout")
        for host in self.cluster.hosts.values():
            if not host.is_in_repair:
                host.crash(power=True)
                self._start_later(host)
        self.cluster.history.blackouts += not self.cluster.scenario.flushed

    def _tamper(self) -> None:
        """Do something to the disks of one broker, which is down or killed for it."""
        host, epoch = self._anyone(), self.cluster.latest_epoch
        if host is None:
            return
        host.crash(power=False)
        backup = self._backups.get(host.node_id)
        what = self.world.rng.choice(("empty", "back up", "back up", "restore", "restore", "swap"))
        last = host.registered_epoch
        if what == "restore" and (backup is None or last <= backup[0]):
            what = "back up"
        self._note(what, host.host)
        if what == "swap":
            self._swap(host)
            return
        if what == "empty":
            host.put({}, epoch)
        elif what == "back up":
            self._backups[host.node_id] = (epoch, host.copy())
        elif backup is not None:
            host.put(backup[1], epoch)
        self._start_later(host)

    def _swap(self, host: Host) -> None:
        """Two brokers get each other's disks, do not start, and get their own ones back."""
        other = self._anyone()
        if other is None or other is host:
            self._start_later(host)
            return
        other.crash(power=False)
        mine, theirs = host.copy(), other.copy()
        before = [(one.emptied_at, one.has_lost) for one in (host, other)]
        for one, contents in ((host, theirs), (other, mine)):
            one.is_in_repair = True
            one.put(contents, self.cluster.latest_epoch)
            one.start()

        def give_back() -> None:
            for one, theirs_now, own, (emptied_at, has_lost) in zip(
                (host, other), (theirs, mine), (mine, theirs), before, strict=True
            ):
                is_known = any(path.endswith(META) for path in theirs_now)
                assert not one.answers or not is_known, f"{one.host} has started with the disks of another broker"
                one.crash(power=False)
                one.put(own, emptied_at)
                one.has_lost, one.is_in_repair = has_lost, False
                self._start_later(one)

        self.world.after(_LOOK_SECONDS, give_back)

    def _mistake_directory(self) -> None:
        """Start a broker that is down with another's number, or for another cluster. P19: it is refused, and writes
        nothing."""
        host, rng = self._anyone(), self.world.rng
        if host is None or host.is_running or not host.marks or host.failed:
            return
        is_number = rng.random() < 0.5
        self._note("wrong flags", host.host, is_number)
        before = host.files()
        host.is_in_repair = True
        settings, server = host.settings, host.server
        if is_number:
            host.settings = {**settings, "node.id": str(host.node_id + 1)}
        else:
            host.server = VirtualServer(self.world)
            host.cluster_id = _ANOTHER_ID
            host.server.commit([Change(CLUSTER, b'{"cluster.id": "%s"}' % _ANOTHER_ID.encode(), MISSING)])
        host.start()

        def look() -> None:
            assert not host.answers, f"P19: {host.host} is served with wrong flags"
            assert host.files() == before, f"P19: who was refused has written to the directories of {host.host}"
            host.crash(power=False)
            host.settings, host.server, host.cluster_id, host.is_in_repair = settings, server, CLUSTER_ID, False
            self._start_later(host)

        self.world.after(_LOOK_SECONDS, look)

    def _put_store_back(self) -> None:
        """Copy the store; or stop all brokers, put an older copy back, and accept it when they have refused it."""
        cluster, rng = self.cluster, self.world.rng
        hosts = list(cluster.hosts.values())
        if cluster.server.away or any(host.is_in_repair for host in hosts):
            return
        if not self._copies or rng.random() < 0.5:
            if len(cluster.history.states) == cluster.scenario.partitions:
                self._copies.append(take_backup(cluster.server.values(), 0).values)
            return
        copy = rng.choice(self._copies)
        self._note("store put back", generation_of(copy))
        for host in hosts:
            host.crash(power=False)
            host.is_in_repair = True
        former = dict(cluster.history.states)
        cluster.put_back(copy)
        generation = generation_of(copy)
        refusing = [
            host
            for host in hosts
            if any(mark.generation > generation for mark in host.marks.values()) and not host.is_filled
        ]
        for host in refusing:
            host.start()

        def accept() -> None:
            for host in refusing:
                assert not host.answers, f"P21: {host.host} has seen a later generation than {generation}"
                host.crash(power=False)
            # A second of this world stands for many: no two copies are accepted within one
            now_ms = 1_700_000_000_000 + cluster.now_ms * 1000
            for commit in in_commits(list(accepted(cluster.server.values(), now_ms))):
                cluster.server.commit(commit)
            for number, state in former.items():
                cluster.history.accepted(number, state)
            for host in hosts:
                host.is_in_repair = False
                self._start_later(host)

        self.world.after(_LOOK_SECONDS, accept)

    def _install(self) -> None:
        """Another release on one broker, or a later format for the cluster, if all that are registered speak it."""
        server = self.cluster.server
        if self.world.rng.random() < 0.4:
            if not server.is_down:
                self._operator.create_task(self._raise_format())
            return
        host = self._anyone()
        if host is None:
            return
        host.crash(power=False)
        host.formats = self.world.rng.choice(RELEASES)
        self._note("release installed", host.host, host.formats)
        self._start_later(host)

    async def _raise_format(self) -> None:
        to = self.cluster.format + 1
        try:
            await raise_format(self._store, to)
        except FormatError:
            return
        self._note("format raised", to)

    def choose_leaders(self, *, also_leaderless: bool = True) -> None:
        """`seglog cluster choose-leader`, where a replica refuses to cut, or a partition has no leader."""
        view = self.cluster.view()
        for (topic_id, number), (state, version) in sorted(view.partitions.items()):
            refusals = [one.node_id for one in state.evidence if one.refused_cut >= 0]
            if not (also_leaderless if state.leader == NO_LEADER else refusals):
                continue
            there = [node for node in state.replicas if node in view.brokers and not view.brokers[node].is_stopping]
            if state.leader == NO_LEADER:
                ends = {one.node_id: (one.last_epoch, one.end) for one in state.evidence}
                nodes = sorted((node for node in there if node in ends), key=ends.__getitem__)[-1:]
            else:
                nodes = [node for node in (state.leader, *refusals) if node in there]
            if nodes:
                self._note("choose", number)
                chosen = choose(state, self.world.rng.choice(nodes), view.brokers)
                self.cluster.server.commit([RAISED, Change(partition_name(topic_id, number), encode(chosen), version)])
