"""The controller of a cluster on one SQLite file: the states of partitions, and writes that fail."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from seglog.cluster.cluster_view import Changes, ControllerRegistration
from seglog.cluster.model import (
    NO_LEADER,
    PARTITIONS,
    Member,
    PartitionState,
    decode_partition,
    encode,
    offline_name,
    partition_name,
    topic_name,
)
from seglog.cluster.store import MetadataStore, VersionedValue
from tests.cases import case
from tests.cluster.cluster_member import ClusterMember, end_session, make_topic
from tests.cluster.contract_controller import ControllerContract, joined, seen
from tests.cluster.faulty import AFTER, BEFORE, UNKNOWN, Faulty

ID = UUID(int=1)


class TestController(ControllerContract):
    def address(self, path: Path) -> str:
        return f"sqlite:{path / 'store'}"

    def test_next_controller_takes_over_when_the_session_ends(self, tmp_path: Path) -> None:
        async def work(made: list[Faulty]) -> None:
            parties = await joined(made)
            await make_topic(made[2].store, "t", [[1, 2, 3]] * 3)
            for party in parties:
                await seen(party, lambda party: party.is_settled(3, 1))
            end_session(tmp_path / "store", made[0])
            for party in parties:
                await seen(party, lambda party: party.view.controller not in (None, ControllerRegistration(1, 1, 1)))
                await seen(party, lambda party: 1 not in party.led())
            assert sorted(party.epoch() or 0 for party in parties) == [0, 0, 2]
            states = await stored(made[0])
            assert {(one.leader, one.leader_epoch, one.isr) for one in states.values()} == {
                (2, 1, (Member(2, 2), Member(3, 3)))
            }

        self.run(tmp_path, work, 3)

    @pytest.mark.parametrize("how", [BEFORE, UNKNOWN, AFTER])
    def test_a_write_that_fails_is_made_once(self, how: str, tmp_path: Path) -> None:
        async def work(made: list[Faulty]) -> None:
            parties = await joined(made)
            made[0].fail(how, how, at=PARTITIONS)
            await make_topic(made[1].store, "t", [[2, 1]] * 20)
            await seen(parties[1], lambda party: party.is_settled(20, 2))
            made[0].fail(how, at=PARTITIONS)
            await parties[1].membership.leave()
            await seen(parties[0], lambda party: party.is_settled(20, 1))
            found = await made[0].load(PARTITIONS)
            assert {one.version for one in found.values()} == {1}

        self.run(tmp_path, work)

    def test_concurrently_changed_partition_does_not_delay_the_others(self, tmp_path: Path) -> None:
        async def work(made: list[Faulty]) -> None:
            parties = await joined(made)
            topic = await make_topic(made[2].store, "t", [[3, 1, 2]] * 100)
            await seen(parties[0], lambda party: party.is_settled(100, 3))
            made[0].hold_commits()
            await parties[2].membership.leave()
            await made[0].held.wait()
            for number in (17, 40):
                name = partition_name(topic.topic_id, number)
                found = await made[1].get(name)
                assert found is not None
                smaller = replace(decode_partition(name, found.value), isr=(Member(3, 3), Member(2, 2)))
                await made[1].cas(name, encode(smaller), found.version)
            await made[1].delete(partition_name(topic.topic_id, 90))
            made[0].commits.clear()
            made[0].release()
            await seen(parties[0], lambda party: party.is_settled(100, 1, 2))
            states = await stored(made[0])
            assert {number: one.leader for (_, number), one in states.items() if one.leader != 1} == {17: 2, 40: 2}
            assert states[ID, 90].leader_epoch == 0
            assert sum(one.leader_epoch == 1 for one in states.values()) == 99
            assert len(made[0].commits) <= 3

        self.run(tmp_path, work, 3)

    def test_states_go_with_their_topic_and_not_because_it_was_not_seen(self, tmp_path: Path) -> None:
        async def work(made: list[Faulty]) -> None:
            parties = await joined(made)
            for number, name in enumerate(("t", "u"), 1):
                await make_topic(made[1].store, name, [[1]] * 3, number)
            await seen(parties[0], lambda party: party.is_settled(6, 1))
            await made[1].delete(topic_name("t"))
            await seen(parties[0], lambda party: party.is_settled(3, 1))
            assert {topic_id for topic_id, _ in await stored(made[0])} == {UUID(int=2)}
            await make_topic(made[1].store, "t", [[2]], 3)
            await seen(parties[0], lambda party: party.is_settled(4, 1, 2))

            # A partition that is seen before its topic.
            made[0].hold_answers()
            await make_topic(made[1].store, "v", [[1]], 4)
            await made[0].held.wait()
            name, value = partition_name(UUID(int=4), 0), encode(one_replica())
            await made[1].create(name, value)
            parties[0].view.note(name, value, 0)
            made[0].release()
            await seen(parties[0], lambda party: "v" in party.view.topics)
            await make_topic(made[1].store, "w", [[1]], 5)
            await seen(parties[0], lambda party: party.is_settled(6, 1, 2))
            assert await made[1].get(name) == VersionedValue(value, 0)

            # A topic that cannot be read: it is not known what belongs to it.
            await made[1].create(topic_name("later"), b'{"form":2}')
            other = partition_name(UUID(int=9), 0)
            await made[1].create(other, value)
            await seen(parties[0], lambda party: (UUID(int=9), 0) in party.view.partitions)
            await make_topic(made[1].store, "x", [[1]], 6)
            await seen(parties[0], lambda party: party.is_settled(8, 1, 2))
            assert await made[1].get(other) is not None
            await made[1].delete(topic_name("later"))
            await seen(parties[0], lambda party: party.is_settled(7, 1, 2))

        self.run(tmp_path, work)

    def test_events_that_come_late_and_again_change_nothing(self, tmp_path: Path) -> None:
        """Brokers come and go, topics are created and deleted; a state is written only if it differs."""

        async def work(made: list[Faulty]) -> None:
            rng = random.Random(11)
            for store in made:
                store.repeats = True
            parties = await joined(made)
            observer = made[2].store
            went_back = [never_back(party) for party in parties]
            for number in range(1, 9):
                case()
                await make_topic(observer, f"t{number}", [rng.sample((1, 2, 3), 3) for _ in range(5)], number)
                if number % 2:
                    end_session(tmp_path / "store", made[rng.randrange(3)])
                if number > 4:
                    await observer.delete(topic_name(f"t{number - 4}"))
                await asyncio.sleep(0.05)
            for party in parties:
                await seen(party, lambda party: party.is_settled(20, 1, 2, 3) and party.is_quiet(3))
            assert went_back == [[], [], []]
            before = [store.commits[:] for store in made]
            version = await observer.create("config/last", b"")
            await seen(parties[0], lambda party: "config/last" in party.view.configs)
            await asyncio.sleep(0.1)  # the late ones come now
            assert (version, [store.commits for store in made]) == (0, before)

        self.run(tmp_path, work, 3)

    def test_controller_in_doubt_decides_nothing(self, tmp_path: Path) -> None:
        """Another process holds the write lock for more than two thirds of the session's time, and releases it."""

        async def work(made: list[Faulty]) -> None:
            party = ClusterMember(made[0], 1, timeout_ms=900)
            await party.join()
            party.run(controller=True)
            await party.controls(1)
            other = sqlite3.connect(tmp_path / "store", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            await party.hears("confirmed", "doubted")
            assert party.epoch() is None
            other.execute("ROLLBACK")
            other.close()
            await party.hears("confirmed", "doubted", "confirmed")
            await make_topic(made[1].store, "t", [[1]])
            await seen(party, lambda party: party.is_settled(1, 1))
            assert party.epoch() == 1
            assert party.view.controller == ControllerRegistration(1, 1, 1)

        self.run(tmp_path, work)

    def test_a_failed_log_directory_is_led_elsewhere(self, tmp_path: Path) -> None:
        async def work(made: list[Faulty]) -> None:
            parties = await joined(made)
            await make_topic(made[1].store, "t", [[1, 2]] * 4)
            await seen(parties[0], lambda party: party.is_settled(4, 1))
            await parties[0].membership.update(offline=(offline_name(ID, 2),))
            await seen(parties[1], lambda party: party.is_settled(4, 1, 2) and 2 in party.led())
            states = await stored(made[0])
            assert {number: one.leader for (_, number), one in states.items()} == {0: 1, 1: 1, 2: 2, 3: 1}

        self.run(tmp_path, work)

    def test_a_broker_that_stops_leads_nothing(self, tmp_path: Path) -> None:
        async def work(made: list[Faulty]) -> None:
            parties = await joined(made)
            await make_topic(made[1].store, "t", [[1, 2], [2, 1]])
            await seen(parties[0], lambda party: party.led() == {1, 2})
            await parties[1].membership.update(is_stopping=True)
            await seen(parties[1], lambda party: party.is_settled(2, 1))

        self.run(tmp_path, work)

    def test_preferred_leaders_come_back(self, tmp_path: Path) -> None:
        async def work(made: list[Faulty]) -> None:
            parties = await joined(made, balance_seconds=0.1)
            await make_topic(made[1].store, "t", [[2, 1]] * 5)
            await seen(parties[0], lambda party: party.is_settled(5, 2))
            end_session(tmp_path / "store", made[1])
            await seen(parties[0], lambda party: party.is_settled(5, 1))
            await seen(parties[0], lambda party: party.view.brokers.get(2, party.view.brokers[1]).epoch == 3)
            for name, found in (await made[1].load(PARTITIONS)).items():  # their leader lets it join
                state = decode_partition(name, found.value)
                await made[1].cas(name, encode(replace(state, isr=(*state.isr, Member(2, 3)))), found.version)
            await seen(parties[0], lambda party: party.is_settled(5, 2))

        self.run(tmp_path, work)

    def test_partition_has_no_leader_until_its_only_replica_returns(self, tmp_path: Path) -> None:
        async def work(made: list[Faulty]) -> None:
            parties = await joined(made)
            await make_topic(made[1].store, "t", [[2]])
            await seen(parties[0], lambda party: party.is_settled(1, 2))
            made[1].hold_commits()  # or it is there again before the controller has missed it
            end_session(tmp_path / "store", made[1])
            await seen(parties[0], lambda party: party.led() == {NO_LEADER})
            made[1].release()
            await seen(parties[0], lambda party: party.is_settled(1, 2))
            states = await stored(made[0])
            assert states[ID, 0] == PartitionState(
                replicas=(2,), leader=2, leader_epoch=2, isr=(Member(2, 3),), is_new=True
            )

        self.run(tmp_path, work)


async def stored(store: MetadataStore) -> dict[tuple[UUID, int], PartitionState]:
    found = await store.load(PARTITIONS)
    keys = {name: name.split("/") for name in found}
    return {(UUID(key[1]), int(key[2])): decode_partition(name, found[name].value) for name, key in keys.items()}


def never_back(party: ClusterMember) -> list[object]:
    """From here on, what it sees that is older than what it saw before."""
    found: list[object] = []
    last: dict[tuple[UUID, int], tuple[int, int]] = {}

    def look(changes: Changes) -> None:
        for key in changes.partitions & party.view.partitions.keys():
            state, version = party.view.partitions[key]
            if (state.leader_epoch, version) < last.get(key, (0, 0)):
                found.append((key, state, version, last[key]))
            last[key] = (state.leader_epoch, version)

    party.view.listeners.append(look)
    return found


def one_replica() -> PartitionState:
    return PartitionState(replicas=(1,), leader=1, leader_epoch=0, isr=(Member(1, 1),))
