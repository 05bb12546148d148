"""One broker, its clients and all that befalls them, by one seed; `python -m tests.simulation SEED` replays it.

Each seed draws first which faults there are, how often, and how slow network and disk are (so that some runs are quiet
but for one thing), then lets them happen for a while, then heals everything: then clients must come to an end, the
broker must stop cleanly, its directory verify, and the next start find nothing to recover.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from seglog.storage.offline.verify import verify
from tests.kit.virtual_broker import DIRECTORY, PORT, Machine
from tests.kit.virtual_loop import World
from tests.kit.virtual_net import Network
from tests.simulation.clients import Client, Deleter, Pipeliner, Producer, Reader
from tests.simulation.guests import Administrator, Guest, Intruder
from tests.simulation.member import Member
from tests.simulation.principals import ALICE, BOB, MALLORY, Permissions, login_of, secured
from tests.simulation.truth import Truth, check

HOST: Final = "broker"
FAULTS: Final = ("kill", "power", "power inside", "restart", "cut", "stall", "client", "disk")
DELAYS: Final = ((0.0001, 0.002), (0.0001, 0.002), (0.001, 0.02), (0.0, 0.1))
THREADS: Final = ((0.0, 0.001), (0.0, 0.01), (0.0, 0.1))
READ_ERRORS: Final = 0.2
"""The share of seeds in which reads of logs fail, and clients send many requests ahead."""
PRINCIPALS: Final = 0.5
"""The share of seeds in which the broker has an authorizer, and clients log in."""
LOOK_AT_GROUPS: Final = 16
"""The number of broker steps between two checks of its groups."""
_USERS: Final[Mapping[object, str]] = {
    Producer: "producer",
    Reader: "reader",
    Pipeliner: "reader",
    Member: "member",
    Deleter: "deleter",
    Administrator: "admin",
}
"""Of each kind of client the user that it logs in as."""


class CheckedMachine(Machine):
    """The simulation checks the broker at each step, until it ``is_checked`` no more when it ends."""

    def __init__(self, simulation: Simulation, *where: Any, **how: Any) -> None:
        super().__init__(*where, **how)
        self._simulation = simulation
        self.is_checked = True

    def on_up(self) -> None:
        self._simulation.broker_up()

    def on_step(self) -> None:
        self._simulation.broker_stepped()

    def on_down(self, left: str) -> None:
        if self.is_checked:
            self._simulation.broker_down(left)


class Simulation:
    """`run` plays it to its end, or raises what went wrong: a `ViolationError`, or an error of the broker's own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        rng = self.rng = Random(f"faults of {seed}")
        self.is_lossy = rng.random() < 0.3
        delay = rng.choice(DELAYS)
        self.network = Network(self.world, lambda: self.world.between(*delay))
        self.truth = Truth(self.world, is_lossy=self.is_lossy)
        self.topics = {"a": rng.randrange(1, 4), "b": 1}
        self.segment_bytes = rng.choice((1000, 4000, 1 << 20))
        self.rates = {fault: rng.random() for fault in FAULTS if rng.random() < 0.5}
        self.seconds = rng.choice((3.0, 5.0, 8.0))
        self.pace = rng.choice((0.2, 0.5, 1.0))
        settings, thread_seconds = self._settings(), rng.choice(THREADS)
        self.permissions: Permissions | None = None
        principals = Random(f"principals of {seed}")
        if principals.random() < PRINCIPALS:
            self.permissions = Permissions()
            settings |= secured(HOST, PORT, reauth_ms=principals.choice(("0", "1500", "3000")))
        self.machine = CheckedMachine(
            self,
            self.world,
            self.network,
            HOST,
            settings=settings,
            thread_seconds=lambda: self.world.between(*thread_seconds),
        )
        self.clients: list[Client] = []
        self.is_healed = False
        self._steps = self._failed_life = 0
        self._numbers = 0
        self._forget_read_error: Callable[[], None] = lambda: None
        reads = Random(f"reads of {seed}")
        if reads.random() < READ_ERRORS:
            self.rates["read"] = 1.0 + reads.random()

    def _settings(self) -> dict[str, str]:
        rng = self.rng
        return {
            "log.flush.interval.messages": "10000" if self.is_lossy else "1",
            "group.initial.rebalance.delay.ms": rng.choice(("0", "500")),
            "group.min.session.timeout.ms": "1000",
            "offsets.topic.num.partitions": rng.choice(("1", "3")),
            "log.roll.ms": rng.choice(("500", "1500", "100000")),
            "log.flush.offset.checkpoint.interval.ms": rng.choice(("300", "5000")),
            "log.flush.start.offset.checkpoint.interval.ms": rng.choice(("300", "5000")),
            "replica.high.watermark.checkpoint.interval.ms": rng.choice(("300", "5000")),
            "log.initial.task.delay.ms": "200",
            "log.index.size.max.bytes": "4000",
            "log.retention.check.interval.ms": "700",
            "log.cleaner.backoff.ms": "500",
            "log.cleaner.min.cleanable.ratio": "0.01",
            "log.segment.delete.delay.ms": rng.choice(("0", "2000")),
            "log.cleaner.dedupe.buffer.size": str(2 << 20),
        }

    # What happens to the broker

    def broker_up(self) -> None:
        node = self.machine.node
        assert node is not None
        with self.machine.disk.unfailing():
            if self.truth.losses:
                self.truth.cut(node)
            self.truth.started(node)
        self.broker_stepped()

    def broker_stepped(self) -> None:
        assert self.machine.node is not None
        self._steps += 1
        with self.machine.disk.unfailing():
            self.truth.look(self.machine.node, groups=self._steps % LOOK_AT_GROUPS == 0)
        life = self.machine.life
        if self._has_failed() and self._failed_life != life:
            self._failed_life = life
            self.world.after(0.7, lambda: self._end_life(life))

    def _has_failed(self) -> bool:
        return self.machine.node is not None and self.machine.node.directories.dirs[0].health.failure is not None

    def _end_life(self, life: int) -> None:
        if self.machine.is_running and self.machine.life == life:
            self.machine.kill()

    def broker_down(self, left: str) -> None:
        check(not self.machine.failures or "disk" in self.rates, f"the broker ended: {self.machine.failures[-1:]}")
        self._forget_read_error()
        self.truth.lost(left)
        self.world.after(self.world.between(0.0, 0.4), self._start)

    def _start(self) -> None:
        if not self.machine.is_running:
            self.machine.start()

    # Faults

    def _plan_fault(self) -> None:
        if self.rates and not self.is_healed:
            self.world.after(self.rng.expovariate(1.0) * self.pace, self._fault)

    def _fault(self) -> None:
        if self.is_healed:
            return
        fault = self.rng.choices(list(self.rates), list(self.rates.values()))[0]
        self.world.note("fault", fault)
        getattr(self, f"_{fault.replace(' ', '_')}")()
        self._plan_fault()

    def _kill(self) -> None:
        if self.machine.is_running:
            self.machine.kill()

    def _power(self) -> None:
        if self.machine.is_running:
            self.machine.lose_power()

    def _power_inside(self) -> None:
        if self.machine.is_running:
            self.machine.lose_power_at_change(self.rng.randrange(1, 30), self.rng.choice((0.0, 0.5, 1.0)))

    def _restart(self) -> None:
        if self.machine.is_up:
            self._forget_read_error()  # it is for a fetch
            self.machine.stop()

    def _cut(self) -> None:
        ends = list(self.network.ends)
        if ends:
            self.network.cut(self.rng.choice(ends))

    def _stall(self) -> None:
        link = self.rng.choice(self.network.links())
        link.is_down = True
        self.world.after(self.rng.random() * 3.0, link.heal)

    def _client(self) -> None:
        """A reader or a member dies, and another one comes."""
        mortal = [one for one in self.clients if isinstance(one, Reader | Member)]
        if not mortal:
            return
        victim = self.rng.choice(mortal)
        self.clients.remove(victim)
        victim.die()
        self.world.after(self.rng.random() * 3.0, lambda: self._add(self._like(victim)))

    def _disk(self) -> None:
        """A write or an fsync fails: the broker serves no more requests until the operator notices and kills it."""
        operation = self.rng.choice(("pwrite", "fsync", "flush", "rename", "fsync_dir"))
        self.machine.disk.fail_at(operation, self.rng.randrange(1, 5), error=self.rng.choice((errno.EIO, errno.ENOSPC)))

    def _read(self) -> None:
        """A fetch, if one comes soon, cannot read its file."""
        if self.machine.is_up:
            self._forget_read_error()
            self._forget_read_error = self.machine.disk.fail_at("pread", self.rng.randrange(1, 3), path=".log")
            self.world.after(0.5, self._forget_read_error)

    # Clients

    def _new(self, kind: Callable[..., Client], name: str, **more: Any) -> Client:
        self._numbers += 1
        address = (HOST, PORT)
        client = kind(self.world, self.network, f"{name}{self._numbers}", address, self.truth, self.topics, **more)
        user = _USERS.get(kind)
        if self.permissions is not None and user is not None:
            client.login = login_of(user)
        return client

    def _like(self, other: Client) -> Client:
        if isinstance(other, Member):
            return self._new(Member, "member", group=other.group, instance=other.instance)
        return self._new(Reader, "reader")

    def _add(self, client: Client) -> None:
        self.clients.append(client)
        client.is_over = self.is_healed
        client.start()

    def _begin(self) -> None:
        for _ in range(self.rng.randrange(1, 3)):
            self._add(self._new(Producer, "producer", most_bytes=min(self.segment_bytes // 5, 70_000)))
        self._add(self._new(Reader, "reader"))
        if "read" in self.rates:
            self._add(self._new(Pipeliner, "pipeliner"))
        instances = self.rng.choice(((None, None), (None, None, None), ("i", "j"), ("i", None)))
        for instance in instances:
            self._add(self._new(Member, "member", group="g", instance=instance))
        if self.rng.random() < 0.4:
            self._add(self._new(Deleter, "deleter"))
        if self.permissions is not None:
            self._invite(self.permissions)

    def _invite(self, permissions: Permissions) -> None:
        """Those who may do something today and not tomorrow, or nothing at all."""
        node = self.machine.node
        assert node is not None
        topic_ids = {topic.name: topic.topic_id for topic in node.topics}
        for user in (ALICE, BOB, MALLORY):
            self._add(self._new(Guest, user, user=user, permissions=permissions, topic_ids=topic_ids))
        self._add(self._new(Intruder, "intruder"))

    async def _make_topics(self) -> None:
        node = self.machine.node
        assert node is not None
        for name, partitions in self.topics.items():
            config = {"internal.segment.bytes": str(self.segment_bytes), "index.interval.bytes": "200"}
            await node.changes.create(name, [()] * partitions, config)

    # The run

    def run(self) -> str:
        """The trace's hash."""
        world, machine = self.world, self.machine
        machine.start()
        self._until(lambda: machine.is_up, 30.0, "the broker starts")
        assert machine.loop is not None
        made = machine.loop.create_task(self._make_topics())
        self._until(made.done, 30.0, "topics are made")
        made.result()
        if self.permissions is not None:
            administrator = self._new(Administrator, "admin", permissions=self.permissions)
            assert isinstance(administrator, Administrator)
            self._add(administrator)
            self._until(lambda: administrator.is_ready, 30.0, "the first ACLs are made")
        self._begin()
        self._plan_fault()
        world.run(lambda: False, self.seconds)
        self._heal()
        self._until(lambda: machine.is_up, 60.0, "the broker starts after all faults")
        producers = [one for one in self.clients if isinstance(one, Producer)]
        self._until(lambda: all(one.has_ended for one in producers), 120.0, "everything is acknowledged")
        self._until(lambda: all(one.has_ended for one in self.clients), 120.0, "everything is read")
        self._check_the_end()
        return world.trace

    def _heal(self) -> None:
        self.is_healed = True
        self.world.note("healed")
        self.machine.disk.heal()
        for link in self.network.links():
            link.heal()
        self.machine.disarm()
        for client in self.clients:
            client.is_over = True

    def _check_the_end(self) -> None:
        """Stopped, verified, started again with nothing to recover, and all is there."""
        machine = self.machine
        self._until(lambda: machine.is_up and not self._has_failed(), 30.0, "the broker runs, with a disk that works")
        before = {name: dict(records) for name, records in self.truth.records.items()}
        for _ in range(2):
            machine.is_checked = False
            machine.stop()
            self._until(lambda: not machine.is_running, 30.0, "the broker stops")
            verified = verify([DIRECTORY], fs=machine.disk, workers=1, fast=False)
            check(not verified.is_damaged, f"the directory is damaged: {[str(one) for one in verified.findings]}")
            machine.start()
            self._until(lambda: machine.is_up, 30.0, "the broker starts after a clean stop")
            assert machine.node is not None
            scanned = [name for name, report in machine.node.directories.dirs[0].reports.items() if report.scanned]
            check(not scanned, f"{scanned} were recovered after a clean stop")
            check(self.truth.records == before, "a clean stop has lost something")
        machine.kill()

    def end(self) -> None:
        """Leave no coroutine behind."""
        for client in self.clients:
            client.loop.kill()
        if self.machine.loop is not None:
            self.machine.loop.kill()

    def _until(self, is_so: Callable[[], bool], seconds: float, what: str) -> None:
        check(self.world.run(is_so, seconds), f"P15: {what}: not within {seconds} s")


def play(seed: int) -> Simulation:
    """Run a seed; an error says how to run it again, and what came last."""
    simulation = Simulation(seed)
    try:
        simulation.run()
    except Exception as error:
        last = "\n".join(simulation.world.last)
        error.add_note(f"{last}\nreplay: python -m tests.simulation {seed}")
        raise
    finally:
        simulation.end()
    return simulation
