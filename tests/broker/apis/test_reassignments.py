"""Leaders and replicas of a cluster on request: ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments.
What is asked and answered here is what three nodes of Kafka 4.4 answer, but where it says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from seglog.cluster.model import NO_LEADER, Member, PartitionState, encode, offline_name, partition_name
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import ANY_VERSION, CommitStep, Versions
from seglog.protocol.apis import ApiKey
from tests.broker.cluster_desk import Desk, broker, run

NOT_NEEDED = (84, "Leader election not needed for topic partition.")
DONE = (0, None)
PREFERRED, UNCLEAN = 0, 1


def in_sync(*nodes: int) -> tuple[Member, ...]:
    return tuple(Member(node, 10 + node) for node in nodes)


def led(leader: int, replicas: Sequence[int], *isr: int, **more: Any) -> PartitionState:
    state = PartitionState(replicas=tuple(replicas), leader=leader, leader_epoch=5, isr=in_sync(*isr), **more)
    state.check()
    return state


async def elect(desk: Desk, kind: int, *numbers: int, topic: str = "t") -> list[tuple[int, str | None]]:
    asked = [{"topic": topic, "partitions": list(numbers)}]
    answer = await desk.ask(ApiKey.ELECT_LEADERS, election_type=kind, topic_partitions=asked, timeout=1000)
    assert answer.error_code == 0
    (result,) = answer.replica_election_results
    assert [one.partition_id for one in result.partition_result] == list(numbers)
    return [(one.error_code, one.error_message) for one in result.partition_result]


async def move(
    desk: Desk, replicas: Sequence[int] | None, number: int = 0, *, may_change: bool = True
) -> tuple[int, str | None]:
    topics = [{"name": "t", "partitions": [{"partition_index": number, "replicas": replicas}]}]
    answer = await desk.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=topics, allow_replication_factor_change=may_change, timeout=1000
    )
    assert (answer.error_code, answer.allow_replication_factor_change) == (0, may_change)
    (one,) = answer.responses[0].partitions
    return one.error_code, one.error_message


async def moving(desk: Desk, topics: Any = None) -> list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    answer = await desk.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=topics, timeout=1000)
    return [
        (one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    ]


# ElectLeaders


def test_the_preferred_leader(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=4)
        await desk.put("t", 0, led(2, (1, 2, 3), 1, 2, 3))
        await desk.put("t", 1, led(2, (2, 1, 3), 1, 2))
        await desk.put("t", 2, led(2, (3, 2, 1), 2, 1))
        await desk.put("t", 3, led(NO_LEADER, (3, 2, 1), elr=in_sync(2), min_insync=2))
        missing = (3, "No such partition as t-9")
        unavailable = (80, "The preferred leader was not available.")
        assert await elect(desk, PREFERRED, 0, 1, 2, 9) == [DONE, NOT_NEEDED, unavailable, missing]
        assert (desk.state("t", 0).leader, desk.state("t", 0).leader_epoch) == (1, 6)
        assert await elect(desk, PREFERRED, 0, topic="u") == [(3, "No such topic as u")]
        assert await elect(desk, PREFERRED, 0) == [NOT_NEEDED]

    run(tmp_path, work)


class CountingStore(SqliteStore):
    """Knows how many steps its commits had."""

    sizes: ClassVar[list[int]] = []

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        self.sizes.append(len(steps))
        return await super().commit(steps)


def test_preferred_leaders_of_everything(tmp_path: Path) -> None:
    """Partitions that need no election are not reported; many are written together."""

    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=60)
        for number in range(60):
            await desk.put("t", number, led(1 + number % 2, (1, 2, 3), 1, 2, 3))
        CountingStore.sizes.clear()
        answer = await desk.ask(ApiKey.ELECT_LEADERS, election_type=0, topic_partitions=None, timeout=1000)
        (result,) = answer.replica_election_results
        told = [(one.partition_id, one.error_code) for one in result.partition_result]
        assert told == [(number, 0) for number in range(1, 60, 2)]
        assert {desk.state("t", number).leader for number in range(60)} == {1}
        assert CountingStore.sizes == [31], "30 states, and the generation"

    run(tmp_path, work, kind=CountingStore)


class RacingStore(SqliteStore):
    """The leader changes its ISR just before anybody else writes the state of the partition."""

    rival: ClassVar[list[tuple[str, bytes]]] = []

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        await self._race()
        return await super().commit(steps)

    async def cas(self, name: str, value: bytes, version: int) -> int:
        await self._race()
        return await super().cas(name, value, version)

    async def _race(self) -> None:
        while self.rival:
            name, value = self.rival.pop()
            await super().cas(name, value, ANY_VERSION)


@pytest.mark.parametrize("together", [1, 3])
def test_a_state_that_has_changed_meanwhile_is_looked_at_anew(tmp_path: Path, together: int) -> None:
    """The state in the store counts, even if the view lags: here the preferred leader of 0 is no longer in sync."""

    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=together)
        for number in range(together):
            await desk.put("t", number, led(2, (1, 2, 3), 1, 2, 3))
        topic_id = desk.topics.by_name["t"].topic_id
        RacingStore.rival.append((partition_name(topic_id, 0), encode(led(2, (1, 2, 3), 2, 3))))
        answers = await elect(desk, PREFERRED, *range(together))
        assert answers == [(80, "The preferred leader was not available."), *[DONE] * (together - 1)]
        assert desk.state("t").isr == in_sync(2, 3)

    run(tmp_path, work, kind=RacingStore)


def test_an_unclean_leader(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=4)
        await desk.put("t", 0, led(NO_LEADER, (3, 2, 9), elr=in_sync(9), min_insync=2))
        await desk.put("t", 1, led(1, (1, 2, 3), 1))
        await desk.put("t", 2, led(NO_LEADER, (9, 8), last_known=(Member(8, 1), Member(9, 1))))
        lost = PartitionState(
            replicas=(9, 2, 1), leader=NO_LEADER, leader_epoch=5, isr=(), last_known=(Member(9, 1), Member(1, 1))
        )
        await desk.put("t", 3, lost)
        nobody = (83, "Eligible topic partition leaders are not available.")
        assert await elect(desk, UNCLEAN, 0, 1, 2, 3) == [DONE, NOT_NEEDED, nobody, DONE]
        state = desk.state("t", 0)
        assert (state.leader, state.leader_epoch, state.isr) == (3, 6, in_sync(3))
        assert desk.state("t", 3).leader == 1  # it had everything once
        answer = await desk.ask(
            ApiKey.ELECT_LEADERS, election_type=5, topic_partitions=[{"topic": "t", "partitions": [0]}], timeout=1
        )
        assert answer.error_code == 42
        assert answer.replica_election_results[0].partition_result[0].error_message == "Unknown election type 5"

    run(tmp_path, work)


def test_a_partition_that_nobody_has_seen_yet_is_asked_for_again(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
        await desk.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=0)
        assert [code for code, _ in await elect(desk, PREFERRED, 0)] == [7]
        assert (await move(desk, [2]))[0] == 7

    run(tmp_path, work)


# AlterPartitionReassignments


def test_replicas_move_step_by_step(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=2)
        await desk.put("t", 0, led(1, (1, 2), 1, 2))
        assert await moving(desk) == []
        assert await move(desk, [3, 2]) == DONE
        assert await moving(desk) == [(0, (3, 2, 1), (3,), (1,))]
        others = [{"name": "t", "partition_indexes": [1, 7]}, {"name": "u", "partition_indexes": [0]}]
        assert await moving(desk, others) == []
        assert desk.state("t").leader == 1
        await desk.put("t", 0, led(1, (3, 2, 1), 1, 2, 3, adding=(3,), removing=(1,)))  # it has come in sync
        await desk.decide()
        state = desk.state("t")
        assert (state.replicas, state.adding, state.removing) == ((3, 2), (), ())
        assert (state.leader, state.leader_epoch, state.isr_nodes) == (3, 6, (2, 3))
        assert await moving(desk) == []

    run(tmp_path, work)


def test_another_order_is_there_at_once(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t")
        await desk.put("t", 0, led(1, (1, 2, 3), 1, 2, 3))
        assert await move(desk, [3, 1, 2]) == DONE
        state = desk.state("t")
        assert (state.replicas, state.leader, state.leader_epoch) == ((3, 1, 2), 1, 5)
        assert await moving(desk) == []
        assert await move(desk, [3]) == DONE  # whoever is to stay is in sync already
        state = desk.state("t")
        assert (state.replicas, state.leader, state.leader_epoch, state.isr_nodes) == ((3,), 3, 6, (3,))

    run(tmp_path, work)


def test_another_target_while_replicas_move(tmp_path: Path) -> None:
    """As three nodes of Kafka had it: 3 of brokers 1 and 2, then 3 and 1, then back."""

    async def work(desk: Desk) -> None:
        await desk.create("t")
        await desk.put("t", 0, led(1, (2, 1), 1, 2))
        assert await move(desk, [2, 3]) == DONE
        assert await moving(desk) == [(0, (2, 3, 1), (3,), (1,))]
        assert await move(desk, [3, 1]) == DONE
        assert await moving(desk) == [(0, (3, 1, 2), (3,), (2,))]
        assert await move(desk, [3], may_change=False) == (38, "The replication factor is changed from 2 to 1")
        assert await move(desk, [3, 2], may_change=False) == DONE
        assert await move(desk, None) == DONE
        assert await moving(desk) == []
        assert sorted(desk.state("t").replicas) == [1, 2]
        assert desk.state("t").leader == 1
        assert await move(desk, None) == (85, None)

    run(tmp_path, work)


@pytest.mark.parametrize("unclean", [False, True])
def test_no_way_back_to_those_who_have_not_everything(tmp_path: Path, *, unclean: bool) -> None:
    async def work(desk: Desk) -> None:
        value = str(unclean).lower()
        await desk.create("t", configs=[{"name": "unclean.leader.election.enable", "value": value}])
        await desk.put("t", 0, led(3, (3, 1), 3, adding=(3,), removing=(1,)))
        answer = await move(desk, None)
        state = desk.state("t")
        if unclean:
            assert answer == DONE
            assert (state.replicas, state.leader, state.isr_nodes) == ((1,), 1, (1,))
        else:
            what = "Unable to revert partition assignment for t:0"
            assert answer == (39, f"{what} because it would require an unclean leader election.")
            assert state.leader == 3

    run(tmp_path, work)


def test_where_replicas_may_go(tmp_path: Path) -> None:
    what = "The manual partition assignment includes"

    async def work(desk: Desk) -> None:
        await desk.create("t")
        await desk.put("t", 0, led(1, (1, 2, 9), 1, 2))
        assert await move(desk, []) == (39, f"{what} an empty replica list.")
        assert await move(desk, [1, 8]) == (39, f"{what} broker 8, but no such broker is registered.")
        assert await move(desk, [1, 1]) == (39, f"{what} the broker 1 more than once.")
        assert await move(desk, [1, 2], number=5) == (3, "Unable to find partition t:5.")
        # 9 is away for a while: it may stay
        assert await move(desk, [9, 1, 2]) == DONE
        assert desk.state("t").replicas == (9, 1, 2)
        one = {"name": "u", "partitions": [{"partition_index": 0, "replicas": [1]}]}
        answer = await desk.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=[one], timeout=1)
        (refused,) = answer.responses[0].partitions
        assert (refused.error_code, refused.error_message) == (3, "Unable to find a topic named u.")

    run(tmp_path, work)


def test_an_offline_replica_is_not_in_time(tmp_path: Path) -> None:
    """A broker whose log directory has failed is there, and yet cannot lead this partition."""

    async def work(desk: Desk) -> None:
        await desk.create("t")
        await desk.put("t", 0, led(2, (1, 2), 1, 2))
        offline = offline_name(desk.topics.by_name["t"].topic_id, 0)
        await desk.register(broker(1, offline=(offline,)))
        assert await elect(desk, PREFERRED, 0) == [(80, "The preferred leader was not available.")]
        assert desk.topics.why_not("t", 0) == 56
        assert desk.topics.why_not("t", 1) == 3
        assert (await desk.metadata("t")).partitions[0].offline_replicas == (1,)

    run(tmp_path, work)


# UnregisterBroker


async def unregister(desk: Desk, node: int) -> tuple[int, str | None]:
    answer = await desk.ask(ApiKey.UNREGISTER_BROKER, broker_id=node)
    return answer.error_code, answer.error_message


def test_a_stopped_broker_is_removed(tmp_path: Path) -> None:
    """All its replicas move. Kafka's partitions keep theirs; the code and message of 9 are Kafka's."""

    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=4, factor=2)
        await desk.put("t", 0, led(1, (1, 3), 1))
        await desk.put("t", 1, led(2, (3, 2), 2))
        await desk.put("t", 2, led(1, (1, 2), 1, 2))
        await desk.put("t", 3, led(1, (1, 2, 3), 1, 2, removing=(3,)))
        assert await unregister(desk, 3) == (42, "Broker 3 is running: stop it first.")
        assert await unregister(desk, 9) == (102, "Broker ID 9 is not currently registered")
        await desk.dies(3)
        assert await unregister(desk, 3) == (0, "")
        assert await moving(desk) == [(0, (1, 2, 3), (2,), (3,)), (1, (2, 1, 3), (1,), (3,)), (3, (1, 2, 3), (), (3,))]
        assert await unregister(desk, 3) == (0, "")  # begun is begun
        await desk.put("t", 0, led(1, (1, 2), 1, 2))
        await desk.put("t", 1, led(2, (2, 1), 1, 2))
        await desk.put("t", 3, led(1, (1, 2), 1, 2))
        assert await unregister(desk, 3) == (102, "Broker ID 3 is not currently registered")

    run(tmp_path, work)


def test_a_broker_is_not_removed_while_too_few_would_remain(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t")
        await desk.put("t", 0, led(1, (1, 2, 3), 1, 2))
        await desk.dies(3)
        why = (
            "t-0 has 3 replicas, but only 2 brokers would remain without broker 3: "
            "add a broker first, or keep fewer replicas: seglog cluster set-replicas 2 t"
        )
        assert await unregister(desk, 3) == (38, why)
        assert await moving(desk) == []

    run(tmp_path, work)
