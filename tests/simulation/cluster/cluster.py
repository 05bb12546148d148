"""Machines, their network and their metadata store under one seed. What runs on them is the broker that ships."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final
from uuid import UUID

from seglog.broker.configuration import topic_rules
from seglog.broker.security.acl_store import FOLDER as ACLS
from seglog.broker.security.acl_store import decode, encode, name_of
from seglog.broker.security.acls import Pattern
from seglog.broker.security.users import FOLDER as USERS
from seglog.cluster.formats import BROKER_EPOCHS, FORMAT, SPEAKS, decode_formats, format_of
from seglog.cluster.membership import count
from seglog.cluster.model import (
    BROKERS,
    PARTITIONS,
    TOPICS,
    BrokerRegistration,
    Member,
    MetadataImage,
    PartitionState,
    TopicState,
    VersionedState,
    decode_broker,
    decode_partition,
    decode_topic,
    parse_partition_name,
)
from seglog.cluster.store import MISSING, Change, VersionedValue
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import SeglogError
from tests.kit.virtual_loop import VirtualLoop, World, is_crash
from tests.kit.virtual_net import Network
from tests.kit.virtual_store import Fate, VirtualServer
from tests.simulation.cluster.contents import TOPIC
from tests.simulation.cluster.faults import Faults
from tests.simulation.cluster.guests import first_acls
from tests.simulation.cluster.history import History
from tests.simulation.cluster.host import Host
from tests.simulation.cluster.rules import Rules
from tests.simulation.cluster.scenario import Scenario
from tests.simulation.principals import Permissions, password_in

_RULES: Final = BrokerConfig()
_OF_OPERATORS: Final = Fate(0.001)


class Cluster:
    """The world, and everything that is in it. ``topic`` is what clients use, as the store has it; None before it is
    made."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.seed = seed
        self.scenario = scenario
        self.world = World(seed)
        self.faults = Faults(seed + 1, scenario)
        self.network = Network(self.world, self.faults.delay, self.faults.loses)
        self._patterns: dict[str, Pattern] = {}
        """Of ACLs, by the names of their values in the store."""
        self.server = VirtualServer(self.world, self._fate, self.faults.watch_delay, changed=self._changed)
        self.topic: TopicState | None = None
        self.topic_id: UUID | None = None
        self.offsets_state: PartitionState | None = None
        """Of the partition of the only group."""
        self.internal: dict[tuple[UUID, int], PartitionState] = {}
        """With ``coordinators``: the partitions of their topics."""
        self.lowered: list[tuple[float, int]] = []
        """To what min.insync.replicas may be set until then."""
        self.entered: dict[VirtualLoop, set[int]] = {}
        """Of each process the broker epochs that the store has given it."""
        self.history = History(self)
        self.rules = Rules(self)
        self.permissions = Permissions() if scenario.principals else None
        if self.permissions is not None:
            for pattern, entries in first_acls(self).items():
                self.server.commit([Change(name_of(pattern), encode(pattern, entries), MISSING)])
        self.hosts = {number: Host(self, number) for number in range(1, scenario.nodes + 1)}
        for host in self.hosts.values():
            host.begin_later(self.world.between(0.0, 0.05))

    def _fate(self, name: str) -> Fate:
        host = next((host for host in self.hosts.values() if host.host == name), None)
        return _OF_OPERATORS if host is None else self.faults.store_call(host.node_id)

    @property
    def now_ms(self) -> int:
        return int(self.world.now * 1000)

    @property
    def min_insync(self) -> int:
        """As the topic is configured, or soon may be."""
        asked = [least for until, least in self.lowered if until > self.world.now]
        return min([1 if self.topic is None else topic_rules(self.topic, _RULES).min_insync, *asked])

    @property
    def latest_epoch(self) -> int:
        """How many registrations the store has counted."""
        return count(BROKER_EPOCHS, self.server.values().get(BROKER_EPOCHS))

    def has_begun(self) -> bool:
        """Whether all partitions have been made, and are led."""
        states = self.history.states
        return len(states) == self.scenario.partitions and all(one.leader >= 0 for one in states.values())

    def states(self) -> Iterator[PartitionState]:
        """Of all partitions in which something may be lost."""
        return chain(self.history.states.values(), self.internal.values())

    def is_losing(self, host: Host) -> bool:
        """Whether it has lost something, and not everyone knows yet."""
        kept = -1 if host.kept_since is None else host.kept_since
        members = [
            member for state in self.states() for member in (*state.isr, *state.elr) if member.node_id == host.node_id
        ]
        return host.has_lost or any(member.epoch < kept for member in members)

    def view(self) -> MetadataImage:
        """The contents of the store, decoded as a broker decodes them."""
        brokers: dict[int, BrokerRegistration] = {}
        topics: dict[UUID, TopicState] = {}
        partitions: dict[tuple[UUID, int], VersionedState] = {}
        for name, (value, version) in self.server.values().items():
            if name.startswith(f"{PARTITIONS}/"):
                partitions[parse_partition_name(name)] = VersionedState(decode_partition(name, value), version)
            elif name.startswith(f"{BROKERS}/"):
                broker = decode_broker(name, value)
                brokers[broker.node_id] = broker
            elif name.startswith(f"{TOPICS}/"):
                topic = decode_topic(name, value)
                topics[topic.topic_id] = topic
        return MetadataImage(brokers, topics, partitions, lambda topic: topic_rules(topic, _RULES))

    # What changes in the store

    def _changed(self, name: str, value: bytes | None, by: VirtualLoop | None) -> None:
        kind = name.partition("/")[0]
        if kind == PARTITIONS:
            topic_id, number = parse_partition_name(name)
            if value is not None and topic_id == self.topic_id:
                self.history.written(number, decode_partition(name, value))
                self.rules.check_candidates(number)
            elif value is not None and self.scenario.coordinators:
                self.internal[topic_id, number] = decode_partition(name, value)
            elif value is not None and self.scenario.groups:
                self.offsets_state = decode_partition(name, value)
        elif kind == BROKERS and value is not None:
            self._registered(decode_broker(name, value), by)
        elif name == f"{TOPICS}/{TOPIC}" and value is not None:
            self.topic = decode_topic(name, value)
            self.topic_id = self.topic.topic_id
        elif kind == FORMAT:
            self.check_formats()
        elif self.permissions is not None and name.startswith((f"{ACLS}/", f"{USERS}/")):
            self._permits(self.permissions, name, value)

    def _permits(self, permissions: Permissions, name: str, value: bytes | None) -> None:
        if name.startswith(f"{USERS}/"):
            permissions.passwords[name.removeprefix(f"{USERS}/")].becomes(password_in(value))
            return
        found = None if value is None else decode(name, value)
        pattern = self._patterns[name] if found is None else found[0]
        self._patterns[name] = pattern
        permissions.acls[pattern].becomes(frozenset(() if found is None else found[1]))

    def _registered(self, broker: BrokerRegistration, by: VirtualLoop | None) -> None:
        member = Member(broker.node_id, broker.epoch)
        is_new = member not in self.history.registered
        self.history.registered[member] = broker
        self.world.note("registered", *member, broker.kept_since)
        if is_new:
            assert by is not None
            self.entered.setdefault(by, set()).add(broker.epoch)
            host = self.hosts[broker.node_id]
            if host.loop is by:
                host.kept_since, host.has_lost = broker.kept_since, bool(host.failed)
            self.check_formats()

    @property
    def format(self) -> int:
        return format_of(self.server.values().get(FORMAT))

    def check_formats(self) -> None:
        """P20: who is registered speaks the cluster's format."""
        values = self.server.values()
        for name in values:
            if name.startswith(f"{BROKERS}/"):
                node = name.partition("/")[2]
                low, high = decode_formats(f"{SPEAKS}/{node}", values.get(f"{SPEAKS}/{node}"))
                assert low <= self.format <= high, f"P20: {node} speaks {low} to {high}, not format {self.format}"

    def put_back(self, values: Mapping[str, VersionedValue]) -> None:
        """The store is an older copy."""
        self.server.put_back(values)
        name = f"{TOPICS}/{TOPIC}"
        self.topic = decode_topic(name, values[name].value)

    # Its end

    def end(self) -> None:
        """Leave no coroutine behind."""
        for host in self.hosts.values():
            if host.loop is not None:
                host.loop.kill()


class UnforeseenErrors(logging.Handler):
    """An error that a broker logs and survives ends the run, unless it is one that an operator may see."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, SeglogError | OSError) and not is_crash(error):
            self._world.errors.append(error)
