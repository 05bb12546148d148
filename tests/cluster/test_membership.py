"""A broker joins, loses its session and joins again: several stores on one SQLite file, which fail when a test says
so."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.features import SUPPORTED
from seglog.cluster.formats import BROKER_EPOCHS
from seglog.cluster.membership import BrokerInfo, Membership
from seglog.cluster.model import BrokerRegistration, Member, TopicRules, broker_name, encode
from seglog.cluster.store import StoreClosedError, StoreError, StoreFailedError, VersionedValue
from seglog.core.ground import Ground
from tests.cluster.cluster_member import ClusterMember, end_session, stores
from tests.cluster.contract import SOON
from tests.cluster.faulty import AFTER, BEFORE, UNKNOWN, Faulty
from tests.kit.virtual_loop import VirtualClock, VirtualLoop, VirtualWorkers, World
from tests.kit.virtual_store import Fate, VirtualServer, VirtualStore

Work = Callable[[list[Faulty]], Coroutine[Any, Any, None]]


def run(path: Path, work: Work, number: int = 2) -> None:
    async def with_stores() -> None:
        async with stores(f"sqlite:{path / 'store'}", number) as made:
            await asyncio.wait_for(work(made), SOON)

    asyncio.run(with_stores())


def test_each_registration_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        parties = [ClusterMember(store, number + 1) for number, store in enumerate(made)]
        await asyncio.gather(*(party.join() for party in parties))
        epochs = {me.epoch for party in parties if (me := party.member())}
        assert epochs == {1, 2, 3, 4}
        assert await made[0].get(BROKER_EPOCHS) == VersionedValue(b"4", 3)
        for party in parties:
            assert party.heard == ["confirmed"]
            assert party.is_certain()
            me = party.member()
            assert me is not None
            assert party.view.brokers[party.node] == await party.registered()
            assert await party.registered() == BrokerRegistration(
                node_id=party.node,
                epoch=me.epoch,
                kept_since=party.kept[0],
                listeners={"PLAINTEXT": f"host{party.node}:9092"},
                rack=f"rack{party.node}",
                directories=(f"disk-of-{party.node}",),
                reports=True,
                features=SUPPORTED,
                proof=party.membership.proof,
            )
            assert party.kept[-1] == me.epoch  # it was on the disk before anybody knew of it
            await party.membership.leave()
            assert party.member() is None
            assert not party.is_certain()
            assert await party.registered() is None

    run(tmp_path, work, 4)


def test_broker_that_lost_its_session_rejoins_in_a_new_epoch(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1)
        await party.join()
        party.run()
        await party.membership.update(offline=("x/1",), listeners={"PLAINTEXT": "elsewhere:1"})
        for life in range(2, 4):
            party.heard.clear()
            end_session(tmp_path / "store", made[0])
            await party.hears("resigned", "confirmed")
            assert party.member() == Member(1, life)
        registered = await party.registered()
        assert registered is not None
        assert (registered.epoch, registered.kept_since, registered.offline) == (3, 1, ("x/1",))
        assert registered.listeners == {"PLAINTEXT": "elsewhere:1"}

    run(tmp_path, work)


def test_joining_again_is_tried_until_the_disk_has_room(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1)
        await party.join()
        party.run()
        party.full = 2
        end_session(tmp_path / "store", made[0])
        await party.hears("confirmed", "resigned", "confirmed")

    run(tmp_path, work)


def test_joining_again_is_tried_until_the_store_works(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1)
        await party.join()
        party.run()
        made[0].fail(BEFORE, BEFORE, at=BROKER_EPOCHS)
        end_session(tmp_path / "store", made[0])
        await party.hears("confirmed", "resigned", "confirmed")
        assert party.member() == Member(1, 2)

    run(tmp_path, work)


def test_doubt_about_the_session_and_its_end_are_reported(tmp_path: Path) -> None:
    """Another process holds the write lock for more than two thirds of the session's time, and releases it."""

    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1, timeout_ms=900)
        await party.join()
        party.run()
        other = sqlite3.connect(tmp_path / "store", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await party.hears("confirmed", "doubted")
        assert party.member() == Member(1, 1)
        assert not party.is_certain()
        assert party.membership.uncertain_seconds > 0
        other.execute("ROLLBACK")
        other.close()
        await party.hears("confirmed", "doubted", "confirmed")
        assert party.membership.uncertain_seconds == 0
        assert party.membership.uncertain_seconds_total > 0
        assert party.member() == Member(1, 1)
        assert party.is_certain()

    run(tmp_path, work)


def test_check_reports_a_session_in_doubt_at_once(tmp_path: Path) -> None:
    """After a pause of the process, requests are handled before the timer of `Membership.run`: here it never runs."""

    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1, timeout_ms=300)
        await party.join()
        other = sqlite3.connect(tmp_path / "store", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await party.becomes(lambda: not party.is_certain())
        assert party.heard == ["confirmed"]
        party.membership.check()
        assert party.heard == ["confirmed", "doubted"]
        party.membership.check()
        assert party.heard == ["confirmed", "doubted"]
        other.execute("ROLLBACK")
        other.close()
        await party.becomes(party.is_certain)
        party.membership.check()
        assert party.heard == ["confirmed", "doubted", "confirmed"]

    run(tmp_path, work)


def test_an_earlier_life_of_the_same_directories_is_taken_away(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        killed = ClusterMember(made[0], 1, directories=("a", "b"))
        await killed.join()
        killed.run()
        again = ClusterMember(made[1], 1, directories=("b", "c"))
        await again.join()
        assert again.member() == Member(1, 2)
        with pytest.raises(StoreError, match=r"taken by the broker at host1:9092 \(log directories b, c\) in epoch 2"):
            await killed.ended()
        assert killed.heard == ["confirmed", "resigned"]
        assert killed.member() is None
        registered = await again.registered()
        assert registered is not None
        assert registered.epoch == 2  # the end of the first one's session has not taken it away

    run(tmp_path, work)


def test_another_broker_with_the_same_node_id_is_refused(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        first, other = (
            ClusterMember(made[0], 1, directories=("a",)),
            ClusterMember(made[1], 1, directories=("b",), timeout_ms=200),
        )
        await first.join()
        with pytest.raises(StoreError) as refused:
            await other.join()
        assert not isinstance(refused.value, StoreFailedError)
        assert str(refused.value) == (
            "node id 1 is taken by the broker at host1:9092 (log directories a); the one at host1:9092 "
            "(log directories b) has other log directories and needs another node.id"
        )
        assert other.heard == []
        assert other.member() is None
        assert not made[1].sessions[-1].is_alive
        registered = await first.registered()
        assert registered is not None
        assert registered.directories == ("a",)
        await made[0].store.cas(broker_name(1), b"{}", 0)
        with pytest.raises(StoreError, match="node id 1 is taken: brokers/1 in the metadata store cannot be read"):
            await other.membership.join(other)

    run(tmp_path, work)


def test_broker_with_replaced_disk_waits_for_its_old_session_to_end(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        old, new = ClusterMember(made[0], 1, directories=("a",)), ClusterMember(made[1], 1, directories=("b",))
        await old.join()
        joining = asyncio.create_task(new.join())
        while not made[1].sessions:  # it has asked, and is refused for now
            await asyncio.sleep(0)
        await old.membership.leave()
        await joining
        assert new.member() == Member(1, 2)

    run(tmp_path, work)


@pytest.mark.parametrize("how", [BEFORE, UNKNOWN, AFTER])
def test_a_commit_that_fails_under_a_registration(how: str, tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1)
        made[0].fail(how, at=BROKER_EPOCHS)
        await party.join()
        assert party.member() == Member(1, 1)
        assert [session.is_alive for session in made[0].sessions].count(True) == 1
        assert await made[1].get(BROKER_EPOCHS) == VersionedValue(b"1", 0)
        assert party.heard == ["confirmed"]

    run(tmp_path, work)


def test_a_store_that_fails_for_longer_than_a_session_is_no_store(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1)
        made[0].fail(*[BEFORE] * 1000, at=BROKER_EPOCHS)
        with pytest.raises(StoreFailedError, match="the disk is full"):
            await party.join()
        assert party.member() is None
        assert not any(session.is_alive for session in made[0].sessions)

    run(tmp_path, work)


def test_late_registration_of_a_killed_process_is_refused(tmp_path: Path) -> None:
    """The registration of a killed run arrives after that of the next run. Both replace an earlier one at the same
    version."""

    async def work(made: list[Faulty]) -> None:
        first, killed, again = (ClusterMember(store, 1) for store in made)
        await first.join()
        made[1].hold_commits()
        joining = asyncio.create_task(killed.join())
        await made[1].held.wait()
        await again.join()
        made[1].forget_reads()  # the process has gone: nobody reads and tries again
        made[1].release()
        with pytest.raises(StoreClosedError):
            await joining
        assert len(made[1].refused) == 1
        registered = await again.registered()
        assert registered is not None
        assert registered.epoch == 2
        assert again.view.brokers[1] == registered
        assert await made[2].get(BROKER_EPOCHS) == VersionedValue(b"2", 1)
        assert again.member() == Member(1, 2)

    run(tmp_path, work, 3)


@pytest.mark.parametrize("how", [BEFORE, UNKNOWN, AFTER])
def test_update_is_written_once_despite_failures(how: str, tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1)
        await party.join()
        made[0].fail(how, how, at=broker_name(1))
        await party.membership.update(is_stopping=True)
        registered = await party.registered()
        assert registered is not None
        assert registered.is_stopping
        assert party.view.brokers[1].is_stopping
        assert party.member() == Member(1, 1)
        await asyncio.gather(*(party.membership.update(offline=(f"x/{number}",)) for number in range(3)))
        registered = await party.registered()
        assert registered is not None
        assert registered == party.view.brokers[1]
        assert registered.offline == party.membership.offline == ("x/2",)

    run(tmp_path, work)


def test_an_update_that_could_not_be_written_is_tried_again(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1, timeout_ms=1000)
        await party.join()
        made[0].fail(*[BEFORE] * 13, at=broker_name(1))
        with pytest.raises(StoreFailedError):
            await party.membership.update(offline=("x/1",))
        party.run()
        await party.sees(lambda: party.view.brokers[1].offline == ("x/1",))

    run(tmp_path, work)


def test_removed_registration_is_made_again(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1)
        await party.join()
        party.run()
        await made[1].delete(broker_name(1))
        await party.hears("confirmed", "resigned", "confirmed")
        assert party.member() == Member(1, 2)
        # A view that says so wrongly is not believed.
        party.view.note(broker_name(1), encode(BrokerRegistration(node_id=1, epoch=9, kept_since=9)), 0)
        await party.sees(lambda: party.view.brokers[1].epoch == 2)
        assert party.member() == Member(1, 2)

    run(tmp_path, work)


def test_leaving_while_joining_leaves_nothing(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        party = ClusterMember(made[0], 1)
        made[0].hold_commits()
        joining = asyncio.create_task(party.join())
        await made[0].held.wait()
        await party.membership.leave()
        made[0].release()
        await joining
        assert await party.registered() is None
        assert party.heard == []
        party.run()
        await party.ended()

    run(tmp_path, work)


def test_a_counter_that_is_there_goes_on(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        await made[1].create(BROKER_EPOCHS, b"41")
        party = ClusterMember(made[0], 7)
        await party.join()
        assert party.member() == Member(7, 42)
        await made[1].cas(BROKER_EPOCHS, b"many", 1)
        with pytest.raises(StoreError, match="epochs/broker in the metadata store is b'many', not a number"):
            await party.membership.join(party)

    run(tmp_path, work)


class Unmoved:
    """A `SessionListener` that does nothing."""

    def doubted(self) -> None: ...
    def resigned(self) -> None: ...
    def confirmed(self) -> None: ...


class VirtualMember:
    """A membership in virtual time. ``fates`` are those of its next calls of the store; later ones succeed."""

    def __init__(self) -> None:
        self.fates: list[Fate] = []
        self._world = World(1)
        server = VirtualServer(self._world, lambda _: self.fates.pop(0) if self.fates else Fate(0.001))
        self.loop, clock = VirtualLoop(self._world, "one"), VirtualClock(self._world)
        store = VirtualStore(server, self.loop, clock)
        self._view = ClusterView(store, lambda _: TopicRules(1, unclean=False))
        self.membership = Membership(
            store,
            self._view,
            BrokerInfo(1, {"PLAINTEXT": "one:9092"}, None, ("disk",)),
            session_timeout_ms=3_000,
            kept_since=lambda epoch, _: epoch,
            ground=Ground(clock=clock, workers=VirtualWorkers(self.loop)),
        )

    async def join(self) -> None:
        await self._view.start()
        await self.membership.join(Unmoved())

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        assert self._world.run(task.done, 100.0)
        task.result()
        self.loop.kill()


def _lost(seconds: float) -> Fate:
    return Fate(seconds, is_applied=False, is_answered=False)


def test_a_session_that_ends_while_the_registration_is_written_does_not_end_the_broker() -> None:
    member = VirtualMember()
    membership = member.membership

    async def work() -> None:
        await member.join()
        running = member.loop.create_task(membership.run())
        await asyncio.sleep(0.05)
        changing = member.loop.create_task(membership.update(rack="a"))
        await asyncio.sleep(0)
        changing.cancel()
        # It tries again, a renewal comes too late, and only then the next attempt turns out to be lost
        member.fates.extend((_lost(0.2), Fate(3.0), _lost(6.0)))
        await asyncio.sleep(60.0)
        assert membership.me == Member(1, 2)
        assert not running.done()

    member.do(work())


def test_a_broker_that_stops_while_it_registers_stops_although_the_store_is_away() -> None:
    """Its new session cannot be closed either. The error of the close replaced the cancellation: the broker registered
    again and never stopped. The simulator of transactions found it at seed 5003379."""
    member = VirtualMember()

    async def work() -> None:
        member.fates.extend((Fate(0.001), Fate(0.001), Fate(0.001), _lost(1.0), _lost(1.0)))
        joining = member.loop.create_task(member.join())
        await asyncio.sleep(0.5)  # view and session are there, and the registration is under way
        assert len(member.fates) == 1
        joining.cancel()
        await asyncio.wait((joining,))
        assert joining.cancelled()
        assert not member.fates

    member.do(work())
