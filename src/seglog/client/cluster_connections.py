"""The brokers of a cluster: connections by address, leaders of partitions, coordinators."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from seglog.client.bootstrap import Dial, HostPort, connect
from seglog.client.client_config import ClientConfig
from seglog.client.connection import BrokerConnection, check_answer
from seglog.core.clock import SleepingClock, SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message

GROUP: Final = 0
TRANSACTION: Final = 1
"""The kinds of key in FindCoordinator."""
_WITHOUT_PARTITION: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_AT_ONCE: Final = 500
"""Topics in one request, to keep the response small."""


class BrokerAddress(NamedTuple):
    """A broker of a cluster, and where it was last seen."""

    node_id: int
    address: HostPort


class PartitionLeader(NamedTuple):
    """``leader`` and ``leader_epoch`` are -1 if the partition has no leader or the broker does not tell the epoch.
    ``error`` is the code of the partition in the answer."""

    leader: int
    leader_epoch: int
    error: int


class TopicMetadata(NamedTuple):
    """``topic_id`` is None before Kafka 2.8. ``error`` is the code of the topic, 0 if it exists."""

    name: str
    topic_id: UUID | None
    error: int
    partitions: Mapping[int, PartitionLeader]


class ClusterMetadata(NamedTuple):
    """``cluster_id`` may be empty; ``controller`` is -1 if there is none."""

    cluster_id: str
    controller: int
    brokers: Mapping[int, HostPort]
    racks: Mapping[int, str | None]
    topics: Mapping[str, TopicMetadata]

    def address(self, partition: TopicPartition) -> HostPort | None:
        """Where the leader is; None if the partition has none, or is not in this answer."""
        leader = self.leader(partition)
        return None if leader is None else self.brokers.get(leader.leader)

    def lacks(self, partition: TopicPartition) -> bool:
        """Whether the topic does not exist, or not with this partition. After another error that is not known."""
        topic = self.topics.get(partition.topic)
        if topic is None:
            return True
        return partition.partition not in topic.partitions and topic.error in _WITHOUT_PARTITION

    def leader(self, partition: TopicPartition) -> PartitionLeader | None:
        """The leader as this answer has it; None if the partition is not in it."""
        topic = self.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic is not None else None


class Coordinator(NamedTuple):
    """The broker that coordinates a group or a transactional id."""

    node_id: int
    address: HostPort


class ClusterConnections:
    """Use as a context manager, in one thread. A connection is opened when it is first used and kept until it fails.

    ``clock`` and ``dial`` are the system's, but in a simulation. Raises what `BrokerConnection` raises.
    """

    def __init__(self, config: ClientConfig, *, clock: SleepingClock | None = None, dial: Dial = connect) -> None:
        self.config = config
        self.clock: SleepingClock = SystemClock() if clock is None else clock
        self._dial = dial
        self._seed: BrokerConnection | None = None
        self._known: tuple[HostPort, ...] = ()
        self._connections: dict[HostPort, BrokerConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def another(self) -> ClusterConnections:
        """Other connections to the same cluster, for requests while these wait for answers."""
        return ClusterConnections(self.config, clock=self.clock, dial=self._dial)

    def close(self) -> None:
        for connection in (*self._connections.values(), *(() if self._seed is None else (self._seed,))):
            connection.close()
        self._connections, self._seed = {}, None

    def at(self, address: HostPort) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BrokerConnection([address], self.config, self.clock, self._dial)
        return connection

    def forget(self, address: HostPort) -> None:
        """Close the connection to a broker that failed. The next use opens another one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def ask_at(
        self, address: HostPort, key: ApiKey, contents: Mapping[str, Any], *, most: int | None = None
    ) -> Message:
        """Ask one broker, in version ``most`` at most. A connection that fails is forgotten, also if this thread is
        interrupted: the next request must not get the answer to this one."""
        try:
            return self.at(address).ask(key, contents, most=most)
        except BaseException:
            self.forget(address)
            raise

    def ask_all(
        self, key: ApiKey, wanted: Mapping[HostPort, Mapping[str, Any]]
    ) -> dict[HostPort, Message | BrokerUnavailableError]:
        """Ask several brokers, which work at the same time. For each the answer, or why there is none; a connection
        that fails, or whose answer is not read, is forgotten."""
        found: dict[HostPort, Message | BrokerUnavailableError] = {}
        asked: deque[HostPort] = deque()
        try:
            for address, contents in wanted.items():
                asked.append(address)
                try:
                    self.at(address).send(key, contents)
                except BrokerUnavailableError as error:
                    self.forget(asked.pop())
                    found[address] = error
            while asked:
                try:
                    found[asked[0]] = self.at(asked[0]).receive()
                except BrokerUnavailableError as error:
                    self.forget(asked[0])
                    found[asked[0]] = error
                asked.popleft()
        finally:
            for address in asked:
                self.forget(address)
        return found

    def ask_any(self, key: ApiKey, contents: Mapping[str, Any]) -> Message:
        """Ask the first broker that answers: of ``bootstrap``, or later one of the cluster as it was last seen."""
        for is_last in (False, True):
            is_new = self._seed is None
            try:
                return self.seed().ask(key, contents)
            except BrokerUnavailableError:
                if self._seed is not None:
                    self._seed.close()
                    self._seed = None
                if is_last or is_new:
                    raise
        raise AssertionError("the second try returns or raises")

    def seed(self) -> BrokerConnection:
        """The connection for requests that any broker answers."""
        if self._seed is None:
            addresses = dict.fromkeys((*self.config.bootstrap, *self._known))
            self._seed = BrokerConnection(list(addresses), self.config, self.clock, self._dial)
        return self._seed

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """Brokers, and these topics or all. A topic that does not exist has an error; none is created."""
        names = None if topics is None else sorted(set(topics))
        found: dict[str, TopicMetadata] = {}
        for start in range(0, len(names or ()) or 1, _AT_ONCE):
            part = None if names is None else names[start : start + _AT_ONCE]
            wanted = None if part is None else [{"name": name, "topic_id": None} for name in part]
            answer = self.ask_any(ApiKey.METADATA, {"topics": wanted, "allow_auto_topic_creation": False})
            for topic in answer.topics:
                found[topic.name] = TopicMetadata(
                    topic.name,
                    topic.topic_id,
                    topic.error_code,
                    {
                        one.partition_index: PartitionLeader(one.leader_id, one.leader_epoch, one.error_code)
                        for one in topic.partitions
                    },
                )
        brokers = {broker.node_id: HostPort(broker.host, broker.port) for broker in answer.brokers}
        self._known = tuple(brokers.values())
        racks = {broker.node_id: broker.rack for broker in answer.brokers}
        return ClusterMetadata(answer.cluster_id or "", answer.controller_id, brokers, racks, found)

    def coordinator(self, kind: int, key: str) -> Coordinator:
        """The coordinator of a group or a transactional id. `RequestFailedError` if there is none now."""
        answer = self.ask_any(ApiKey.FIND_COORDINATOR, {"key": key, "key_type": kind, "coordinator_keys": (key,)})
        found = answer.coordinators[0] if answer.coordinators else answer
        what = "group" if kind == GROUP else "transactional id"
        check_answer(found.error_code, f"coordinator of {what} {key}", found.error_message)
        return Coordinator(found.node_id, HostPort(found.host, found.port))
