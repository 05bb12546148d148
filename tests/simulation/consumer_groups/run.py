"""Runs of simulated clusters whose clients are members of a group: faults, then a quiet end, and then every partition
has one owner."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from seglog.coordinators.classic.state import GroupState
from seglog.coordinators.consumer.group import ConsumerGroup, ConsumerGroupState
from seglog.coordinators.coordinator_shard import Group
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.coordinator_clients import CoordinatorOperators
from tests.simulation.cluster.nemesis import Nemesis
from tests.simulation.cluster.run import heal, run_until, settle, unforeseen_errors
from tests.simulation.cluster.scenario import Scenario
from tests.simulation.consumer_groups.members import GROUP, Member, contexts_of
from tests.simulation.consumer_groups.ownership import GroupModel

SECONDS: Final = 15
_BEGINNING_SECONDS: Final = 5
_ENDING_SECONDS: Final = 40.0
_LOOK_SECONDS: Final = 0.25
_KINDS: Final = ((1, 1, 1), (3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 2, 1), (4, 3, 2))
"""Brokers, replicas, min.insync.replicas."""
_MEMBERS: Final = 4
_MOVED: Final = (("__consumer_offsets", 0),)


class Run(NamedTuple):
    """The result of a run."""

    cluster: Cluster
    operators: CoordinatorOperators
    nemesis: Nemesis
    members: list[Member]
    model: GroupModel

    @property
    def trace(self) -> str:
        return self.cluster.world.trace

    @property
    def counted(self) -> Counter[str]:
        return Counter(
            events=self.cluster.world.steps,
            lives=sum(one.lives for one in self.members),
            given=self.model.given,
            revoked=sum(one.revoked for one in self.members),
            commits=sum(one.commits for one in self.members),
            refused=sum(one.refused for one in self.members),
        )

    @property
    def faults(self) -> Counter[str]:
        return self.nemesis.struck + self.operators.done


def draw(seed: int) -> Scenario:
    rng = random.Random(seed + 2)
    nodes, replicas, min_insync = rng.choice(_KINDS)
    return Scenario(
        nodes=nodes,
        partitions=rng.choice((3, 4, 6)),
        replicas=replicas,
        min_insync=min_insync,
        flushed=rng.random() < 0.3,
        coordinators=True,
    )


def run(
    seed: int,
    *,
    scenario: Scenario | None = None,
    rates: Mapping[str, float] = MappingProxyType({}),
    classics: float | None = None,
    seconds: float = SECONDS,
) -> Run:
    """A cluster with faults for so long, then without, until every partition has an owner. ``rates`` of `Faults` are
    instead of what the seed says, ``classics`` how many lives speak the classic protocol. AssertionError names the
    property."""
    cluster = Cluster(seed, scenario or draw(seed))
    faults = cluster.faults
    faults.delete_every = 0
    if cluster.scenario.flushed:
        faults.blackout_every = random.Random(seed + 11).choice((0, 4_000))
    for name, rate in rates.items():
        setattr(faults, name, rate)
    if classics is None:
        classics = random.Random(seed + 13).choice((0.0, 0.0, 0.3, 0.6))
    model = GroupModel(restarts=classics > 0)
    operators, nemesis = CoordinatorOperators(cluster, _MOVED), Nemesis(cluster)
    members: list[Member] = []
    try:
        with unforeseen_errors(cluster.world):
            assert cluster.world.run(cluster.has_begun, _BEGINNING_SECONDS), "the topic is not made"
            members += [
                Member(cluster, f"m{number}", model, instance=f"i{number}" if number < 2 else None, classics=classics)
                for number in range(_MEMBERS)
            ]
            faults.is_on = True
            nemesis.begin()
            _run_and_look(cluster, seconds)
            nemesis.is_on = operators.is_on = False
            for member in members:
                member.is_calm = True
            heal(cluster)
            settle(cluster, nemesis)
            _share_out(cluster, members, model)
            _fetch(cluster, members[0])
    except BaseException as error:
        error.add_note("\n".join(cluster.world.last))
        raise
    finally:
        for one in (*members, operators):
            one.loop.kill()
        nemesis.end()
        cluster.end()
    return Run(cluster, operators, nemesis, members, model)


def _run_and_look(cluster: Cluster, seconds: float) -> None:
    end = cluster.world.now + seconds
    while cluster.world.now < end:
        run_until(cluster.world, min(cluster.world.now + _LOOK_SECONDS, end))
        for group in _groups(cluster):
            if isinstance(group, ConsumerGroup):
                group.check()


def _groups(cluster: Cluster) -> Iterator[Group]:
    """The group, as its coordinators know it."""
    for context in contexts_of(cluster):
        if context.is_led and context.is_loaded and GROUP in context.shard.groups:
            yield context.shard.groups[GROUP]


def _share_out(cluster: Cluster, members: list[Member], model: GroupModel) -> None:
    """Each partition gets one owner, and then nothing moves any more."""
    end = cluster.world.now + _ENDING_SECONDS
    while cluster.world.now < end:
        _run_and_look(cluster, _LOOK_SECONDS)
        groups = list(_groups(cluster))
        if model.is_shared_out(cluster.scenario.partitions) and len(groups) == 1 and _is_stable(groups[0]):
            return
    owned = {one.name: sorted(one.view.owned) for one in members}
    raise AssertionError(f"not shared out: {owned}; {[one.doing for one in members]}; {list(_groups(cluster))}")


def _is_stable(group: Group) -> bool:
    return group.state in (ConsumerGroupState.STABLE, GroupState.STABLE)


def _fetch(cluster: Cluster, member: Member) -> None:
    """Fetch the committed offsets at the end of a run."""
    for number in range(cluster.scenario.partitions):
        fetching = member.loop.create_task(member.fetch_at_last(number))
        assert cluster.world.run(fetching.done, _ENDING_SECONDS), f"hangs: the committed offset of {number}"
        fetching.result()
