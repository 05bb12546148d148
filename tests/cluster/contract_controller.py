"""The contract of a cluster on any store: registrations, the controller, and leaders."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.cluster_view import CONTROLLER, ControllerRegistration, decode_controller
from seglog.cluster.controller import CONTROLLER_EPOCHS
from seglog.cluster.generation import SeenGenerations, StoreWentBackError, check_store, names_to_check
from seglog.cluster.model import GENERATION, PARTITIONS, Member, topic_name
from seglog.cluster.store import VersionedValue
from seglog.core.ground import THREADS
from tests.cluster.cluster_member import ClusterMember, make_topic, stores
from tests.cluster.contract import SOON
from tests.cluster.faulty import AFTER, UNKNOWN, Faulty

Work = Callable[[list[Faulty]], Coroutine[Any, Any, None]]


async def seen(party: ClusterMember, condition: Callable[[ClusterMember], bool]) -> None:
    """Wait until the broker's view satisfies the condition."""
    await party.sees(lambda: condition(party))


async def joined(made: list[Faulty], *, balance_seconds: float | None = None) -> list[ClusterMember]:
    """Join brokers 1, 2 and so on; the first is the controller."""
    parties = [ClusterMember(store, number + 1, balance_seconds=balance_seconds) for number, store in enumerate(made)]
    for party in parties:
        await party.join()
        party.run(controller=True)
        await parties[0].controls(1)
    for party in parties:
        await seen(party, lambda party: len(party.view.brokers) == len(parties))
    return parties


class ControllerContract(ABC):
    @abstractmethod
    def address(self, path: Path) -> str:
        """The address of the store of ``path``."""

    def run(self, path: Path, work: Work, number: int = 2) -> None:
        async def with_stores() -> None:
            async with stores(self.address(path), number) as made:
                await asyncio.wait_for(work(made), 2 * SOON)

        asyncio.run(with_stores())

    def test_the_generation_rises_with_each_election_and_a_store_that_goes_back_is_not_taken_up(
        self, tmp_path: Path
    ) -> None:
        async def work(made: list[Faulty]) -> None:
            one, two = await joined(made)
            before = one.view.generation
            assert before >= 0
            await make_topic(one.store, "t", [(1, 2)])
            await one.sees(lambda: bool(one.view.partitions))
            await one.sees(lambda: one.view.generation > before)
            written: list[int] = []
            histories = [SeenGenerations(one.store, "store", one.view, 1, written.append, THREADS)]
            await histories[0].note()
            assert written == [one.view.generation]
            values = await two.store.get_many(names_to_check(1))
            check_store("store", values, node_id=1, generation=written[0], broker_epoch=1, directory="/d")
            for seen, epoch, proof in (
                (written[0] + 1, 0, "it is at generation"),
                (written[0], 1000, "it counts 2 registrations"),
            ):
                with pytest.raises(StoreWentBackError, match=proof):
                    check_store("store", values, node_id=1, generation=seen, broker_epoch=epoch, directory="/d")
            later = values | {GENERATION: VersionedValue(b"0", written[0] + 100)}
            with pytest.raises(
                StoreWentBackError, match=f"it records that broker 1 has seen generation {written[0]}, but /d"
            ):
                check_store("store", later, node_id=1, generation=written[0] + 5, broker_epoch=1, directory="/d")
            ends = asyncio.ensure_future(histories[0].run())
            topics = dict(one.view.topics)
            for party in (one, two):
                await party.stop()
            await one.view.start()
            await two.store.delete(GENERATION)
            with pytest.raises(StoreWentBackError, match="it is at generation -1, and was at"):
                await ends
            await two.store.delete(topic_name("t"))
            await two.store.create("last", b"")
            await one.store.get("last")
            assert one.view.topics == topics, "nothing of it counts"

        self.run(tmp_path, work)

    def test_deposed_controller_with_a_write_in_flight_is_fenced(self, tmp_path: Path) -> None:
        """It stalls with a write in flight, which only the controller's epoch fences."""

        async def work(made: list[Faulty]) -> None:
            first, second = await joined(made)
            made[0].hold_commits()
            await make_topic(made[1].store, "t", [[1, 2]] * 5)
            await made[0].held.wait()
            await second.sees(lambda: "t" in second.view.topics)
            await made[1].delete(topic_name("t"))
            await made[0].sessions[-1].close()
            await second.controls(2)
            made[0].release()
            await first.hears("confirmed", "resigned", "confirmed")
            await first.sees(lambda: first.view.controller == ControllerRegistration(2, 2, 2))
            while not any(CONTROLLER_EPOCHS in one for one in made[0].refused):
                await asyncio.sleep(0.01)  # the answer may come after what was heard
            assert await made[1].load(PARTITIONS) == {}
            assert first.epoch() is None
            await make_topic(made[1].store, "u", [[1], [2]], 2)
            await second.sees(lambda: second.is_settled(2, 1, 2))

        self.run(tmp_path, work)

    @pytest.mark.parametrize("how", [UNKNOWN, AFTER])
    def test_claim_with_a_lost_response_still_yields_one_controller(self, how: str, tmp_path: Path) -> None:
        """Whether the claim was made or not, there is one controller, and it knows its role."""

        async def work(made: list[Faulty]) -> None:
            party = ClusterMember(made[0], 1)
            made[0].fail(how, at=CONTROLLER_EPOCHS)
            await party.join()
            party.run(controller=True)
            await make_topic(made[1].store, "t", [[1]])
            await party.sees(lambda: party.is_settled(1, 1))
            assert party.epoch() == 1
            found = await made[1].get(CONTROLLER)
            assert found is not None
            assert decode_controller(found.value) == ControllerRegistration(1, 1, 1)

        self.run(tmp_path, work)

    def test_a_controller_that_is_killed_and_started_again_does_not_wait_for_its_own_session(
        self, tmp_path: Path
    ) -> None:
        async def work(made: list[Faulty]) -> None:
            killed = ClusterMember(made[0], 1, timeout_ms=60_000)
            await killed.join()
            killed.run(controller=True)
            await killed.controls(1)
            await killed.stop()
            again = ClusterMember(made[1], 1)
            await again.join()
            again.run(controller=True)
            await again.controls(2)
            assert again.member() == Member(1, 2)
            assert again.view.controller == ControllerRegistration(1, 2, 2)

        self.run(tmp_path, work)

    def test_a_thousand_partitions_have_new_leaders_and_no_leader_changes_for_nothing(self, tmp_path: Path) -> None:
        """The controller goes, then the next one. What that costs: tests/broker/topics/test_topic_counts.py."""

        async def work(made: list[Faulty]) -> None:
            parties = await joined(made)
            for number in range(10):
                assignment = [[(at + of) % 3 + 1 for of in range(3)] for at in range(100)]
                await make_topic(made[0].store, f"t{number}", assignment, number + 1)
            for party in parties:
                await seen(party, lambda party: party.is_settled(1000, 1, 2, 3))
            for gone, *left in (parties, parties[1:]):
                leaders = [party.node for party in left]

                def is_settled(party: ClusterMember, leaders: list[int] = leaders) -> bool:
                    return party.is_settled(1000, *leaders)

                await gone.membership.leave()
                for party in left:
                    await seen(party, is_settled)
            epochs = [stored.state.leader_epoch for stored in parties[2].view.partitions.values()]
            assert [epochs.count(epoch) for epoch in (0, 1, 2)] == [330, 330, 340]

        self.run(tmp_path, work, 3)
