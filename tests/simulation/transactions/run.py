"""Runs of simulated clusters whose clients use transactions: faults, then a quiet end, and then every transaction is
whole or absent."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from seglog.replication.replica import Replica
from tests.cluster_run.history import History
from tests.cluster_run.transaction_checks import TransactionReport, check_transactions
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.coordinator_clients import CoordinatorOperators
from tests.simulation.cluster.host import Host
from tests.simulation.cluster.nemesis import Nemesis
from tests.simulation.cluster.run import heal, run_until, settle, unforeseen_errors
from tests.simulation.cluster.scenario import Scenario
from tests.simulation.transactions.clients import (
    GROUP,
    INPUTS,
    Appender,
    Finale,
    Processor,
    TransactionClient,
)
from tests.simulation.transactions.producer import key_of
from tests.simulation.transactions.range_reader import RangeReader

SECONDS: Final = 15
_BEGINNING_SECONDS: Final = 5
_ENDING_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_MOVED: Final = (("__transaction_state", 0), ("__transaction_state", 1), ("__consumer_offsets", 0))
_KINDS: Final = ((1, 1, 1), (3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 2, 1), (4, 3, 2))
"""Brokers, replicas, min.insync.replicas."""


class Run(NamedTuple):
    """The result of a run."""

    cluster: Cluster
    operators: CoordinatorOperators
    nemesis: Nemesis
    report: TransactionReport
    operations: History
    ranges: RangeReader

    @property
    def trace(self) -> str:
        return self.cluster.world.trace

    @property
    def events(self) -> int:
        return self.cluster.world.steps


def draw(seed: int) -> Scenario:
    rng = random.Random(seed + 2)
    nodes, replicas, min_insync = rng.choice(_KINDS)
    return Scenario(
        nodes=nodes,
        partitions=rng.choice((3, 3, 4)),
        replicas=replicas,
        min_insync=min_insync,
        flush_ms=rng.choice((None, None, 1_000)),
        flushed=rng.random() < 0.3,
        coordinators=True,
    )


def run(
    seed: int,
    *,
    scenario: Scenario | None = None,
    rates: Mapping[str, float] = MappingProxyType({}),
    seconds: float = SECONDS,
) -> Run:
    """A cluster with faults for so long, then without, until everyone agrees and everything is decided. ``rates`` of
    `Faults` are instead of what the seed says. AssertionError names the property."""
    cluster = Cluster(seed, scenario or draw(seed))
    faults, history = cluster.faults, History()
    faults.delete_every = 0
    faults.clock_every = 0  # a transaction that begins an hour ahead times out an hour late, as in Kafka
    if cluster.scenario.flushed:
        faults.blackout_every = random.Random(seed + 11).choice((0, 4_000))
    for name, rate in rates.items():
        setattr(faults, name, rate)
    operators, nemesis = CoordinatorOperators(cluster, _MOVED), Nemesis(cluster)
    clients: list[TransactionClient] = []
    ranges = RangeReader(cluster)
    try:
        with unforeseen_errors(cluster.world):
            assert cluster.world.run(cluster.has_begun, _BEGINNING_SECONDS), "the topic is not made"
            clients += [Appender(cluster, f"w{number}", history) for number in range(3)]
            clients += [Processor(cluster, f"x{number}", history) for number in range(2)]
            faults.is_on = True
            nemesis.begin()
            if cluster.scenario.ranges:
                ranges.read_until(cluster.world.now + seconds)
            else:
                run_until(cluster.world, cluster.world.now + seconds)
            nemesis.is_on = operators.is_on = False
            for client in clients:
                client.is_on = False
            heal(cluster)
            settle(cluster, nemesis)
            _decide(cluster, clients)
            cluster.history.at_the_end()
            report = _check(cluster, clients, history)
            ranges.check(history)
    except BaseException as error:
        error.add_note("\n".join(cluster.world.last))
        raise
    finally:
        for loop in (*(one.loop for one in clients), operators.loop, ranges.loop):
            loop.kill()
        nemesis.end()
        cluster.end()
    return Run(cluster, operators, nemesis, report, history, ranges)


def _decide(cluster: Cluster, clients: list[TransactionClient]) -> None:
    """Nothing hangs: clients end what they do, transactions that they have left are aborted, and the last stable offset
    is the high watermark everywhere."""
    end = cluster.world.now + _ENDING_SECONDS
    while cluster.world.now < end:
        run_until(cluster.world, cluster.world.now + _LOOK_SECONDS)
        if all(one.has_ended for one in clients) and not list(_undecided(cluster)):
            return
    hanging = [f"{one.name}: {one.doing}" for one in clients if not one.has_ended]
    raise AssertionError(f"hangs: {[*hanging, *_undecided(cluster)]}")


def _undecided(cluster: Cluster) -> Iterator[str]:
    for host in cluster.hosts.values():
        if host.node is None or not host.answers:
            yield f"{host.host} is down"
            continue
        for replica in host.node.replicas.by_key.values():
            yield from _unstable(host, replica)
        for transaction in _transactions(host):
            yield f"{host.host}: {transaction}"
        for context in host.node.groups._contexts.values():
            pending = list(context.shard.offsets._pending)
            if context.is_led and pending:
                yield f"{host.host}: offsets of producers {pending} are pending"


def _unstable(host: Host, replica: Replica) -> Iterator[str]:
    log = replica.log
    if not log.last_stable_offset == log.high_watermark == log.log_end_offset:
        yield (
            f"{host.host}: {log.topic_partition} is stable up to {log.last_stable_offset}, committed up to "
            f"{log.high_watermark} of {log.log_end_offset}"
        )


def _transactions(host: Host) -> Iterator[object]:
    """Those that are open, as their coordinator knows them."""
    assert host.node is not None
    for context in host.node.transactions._contexts.values():
        if context.is_led:
            if not context.is_loaded:
                yield f"{context.partition.topic_partition} is not loaded"
            yield from (one for one in context.shard.transactions.values() if not one.is_at_rest)


def _check(cluster: Cluster, clients: list[TransactionClient], history: History) -> TransactionReport:
    finale = Finale(cluster, "final", history)
    reader = Processor(cluster, "offsets", history)
    reader.is_on = False
    clients += [finale, reader]
    ends = {number: max(end for end in _ends(cluster, number)) for number in range(cluster.scenario.partitions)}
    reading = [finale.loop.create_task(finale.read_all(number, end)) for number, end in ends.items()]
    assert cluster.world.run(lambda: all(task.done() for task in reading), _ENDING_SECONDS), "hangs: the final reads"
    for task in reading:
        task.result()
    fetching = reader.loop.create_task(reader.committed_at_last(list(INPUTS)))
    assert cluster.world.run(fetching.done, _ENDING_SECONDS), "hangs: the group's offsets are unstable"
    positions = fetching.result()
    report = check_transactions(history, {GROUP: {key_of(number): offset for number, offset in positions.items()}})
    assert not report.report.anomalies, "\n".join(map(str, report.report.anomalies[:5]))
    return report


def _ends(cluster: Cluster, number: int) -> Iterator[int]:
    for host in cluster.hosts.values():
        replica = host.replicas.get(number)
        if replica is not None:
            yield replica.log.high_watermark
