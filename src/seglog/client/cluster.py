"""Inspects and changes a whole cluster over Kafka's protocol, seglog's or Kafka's.

The answers come one after the other, so they describe about the same moment, not the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

from seglog.client.admin import Admin
from seglog.client.bootstrap import HostPort
from seglog.client.connection import describe_code
from seglog.cluster.health import BrokerStatus, ClusterStatus, PartitionStatus
from seglog.cluster.model import REFUSED_REPLICAS, Refusal, decode_refusals
from seglog.cluster.reassignment_plan import Place, ReplicaMove
from seglog.core.errors import RequestFailedError
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.storage.directory.strays import is_stray_name
from seglog.storage.log.dir_health import is_short

_TOPIC: Final = 2
"""The resource type of a topic's configuration."""
_MIN_INSYNC: Final = "min.insync.replicas"
_BROKER: Final = 4
"""The resource type of a broker's configuration."""
_STORE: Final = "cluster.store"
_DEBUGGING: Final = -2
"""The replica id of a request for the log end offsets of followers too (``DEBUGGING_REPLICA_ID``)."""
_LATEST: Final = -1
_BROKERS: Final = 1
"""The endpoint type of brokers in DescribeCluster."""
_PREFERRED: Final = 0
_UNCLEAN: Final = 1
_OUTCOMES: Final = {0: "elected", 84: "not needed"}
"""The outcomes of an election by error code."""
_AT_ONCE: Final = 500
"""Topics in one request, to keep the response small."""


class Directory(NamedTuple):
    """A log directory of a broker: its error (None if it is usable), the bytes of each replica in it, and free and
    total bytes of its disk."""

    path: str
    error: str | None
    sizes: Mapping[Place, int]
    free: int
    total: int


class ClusterAdmin(Admin):
    """Use as a context manager for one inspection or change, in one thread. `RequestFailedError` names the broker or
    topic."""

    def look(self, topics: Collection[str] | None = None, *, closely: bool = True) -> ClusterStatus:
        """Brokers and partitions, of these topics or of all. ``closely`` asks each broker for the ends and sizes of its
        replicas, and notes the brokers that do not answer."""
        metadata = self._cluster.metadata(())
        brokers = {
            node: BrokerStatus(node_id=node, rack=metadata.racks[node], listeners={"": str(address)})
            for node, address in metadata.brokers.items()
        }
        partitions = self._with_min_insync(self._with_moves(list(self._partitions(topics))))
        contents = {"include_cluster_authorized_operations": False, "endpoint_type": _BROKERS}
        controller = self._cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, contents).controller_id
        seen = ClusterStatus(
            cluster_id=metadata.cluster_id,
            controller=controller if controller >= 0 else None,
            brokers=brokers,
            partitions=tuple(partitions),
        )
        return self.look_closely(seen) if closely else seen

    def look_closely(self, seen: ClusterStatus) -> ClusterStatus:
        """Add what each broker says about its own replicas."""
        brokers = dict(seen.brokers)
        ends: dict[Place, dict[int, int]] = {}
        sizes: dict[Place, dict[int, int]] = {}
        for node, broker in seen.brokers.items():
            try:
                directories = self.directories(node)
                own = [one for one in seen.partitions if node in one.replicas]
                for place, end in self._ends(node, own):
                    ends.setdefault(place, {})[node] = end
            except RequestFailedError:
                self._forget(node)
                brokers[node] = replace(broker, answers=False)
                continue
            for one in own:  # one that it has not made yet has no bytes
                sizes.setdefault(one.place, {})[node] = 0
            strays: list[int] = []
            for directory in directories:
                for place, size in directory.sizes.items():
                    if is_stray_name(place[0]):
                        strays.append(size)
                    else:
                        sizes.setdefault(place, {})[node] = size
            refused = self._refused(node, own)
            failed = {one.path: one.error for one in directories if one.error is not None}
            full = {one.path: one.free for one in directories if one.error is None and is_short(one.free, one.total)}
            found = replace(broker, answers=True, failed=failed, full=full)
            found = replace(found, refused=refused)
            brokers[node] = replace(found, strays=len(strays), stray_bytes=sum(strays))
        partitions = tuple(
            replace(one, ends=ends.get(one.place, {}), sizes=sizes.get(one.place, {})) for one in seen.partitions
        )
        return replace(seen, brokers=brokers, partitions=partitions)

    def _refused(self, node: int, own: Iterable[PartitionStatus]) -> dict[Place, Refusal]:
        """The replicas that a broker of seglog does not serve; it is asked only if some are not in sync."""
        lacking = {f"{one.topic}-{one.number}": one.place for one in own if one.leader is None or node not in one.isr}
        if not lacking:
            return {}
        text = None
        with suppress(RequestFailedError):
            text = self._described(node, REFUSED_REPLICAS)
        found = {} if text is None else decode_refusals(text)
        return {lacking[name]: refusal for name, refusal in found.items() if name in lacking}

    def _described(self, node: int, key: str) -> str | None:
        """A value of a broker's configuration, None without one."""
        broker = {"resource_type": _BROKER, "resource_name": str(node), "configuration_keys": (key,)}
        (result,) = self._at(self._address(node)).ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [broker]}).results
        return next((one.value for one in result.configs if one.name == key and one.value), None)

    def directories(self, node: int) -> list[Directory]:
        """The log directories of a broker."""
        answer = self._at(self._address(node)).ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
        return [
            Directory(
                one.log_dir,
                describe_code(one.error_code),
                {
                    (topic.name, partition.partition_index): partition.partition_size
                    for topic in one.topics
                    for partition in topic.partitions
                    if not partition.is_future_key
                },
                one.usable_bytes,
                one.total_bytes,
            )
            for one in answer.results
        ]

    def store_address(self) -> str | None:
        """The address of the metadata store in a broker's configuration. None for Kafka, and for a broker without a
        cluster."""
        for node in self._brokers():
            with suppress(RequestFailedError):
                return self._described(node, _STORE)
        return None

    def addresses(self) -> list[HostPort]:
        """The addresses of all live brokers."""
        return list(self._brokers().values())

    def racks(self) -> dict[int, str | None]:
        """The racks of all live brokers."""
        return dict(self._cluster.metadata(()).racks)

    # Changes

    def reassign(self, moves: Iterable[ReplicaMove], timeout_ms: int = 60_000) -> dict[Place, str]:
        """Begin reassignments; returns the errors of those that were refused."""
        return self._alter_reassignments({move.place: move.after for move in moves}, timeout_ms)

    def cancel(self, places: Iterable[Place], timeout_ms: int = 60_000) -> dict[Place, str]:
        """Cancel reassignments; returns the errors of those that were refused."""
        return self._alter_reassignments(dict.fromkeys(places), timeout_ms)

    def _alter_reassignments(self, wanted: Mapping[Place, Sequence[int] | None], timeout_ms: int) -> dict[Place, str]:
        topics: dict[str, list[Mapping[str, object]]] = {}
        for (topic, number), replicas in wanted.items():
            topics.setdefault(topic, []).append({"partition_index": number, "replicas": replicas})
        contents = {
            "timeout": timeout_ms,
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        }
        answer = self._ask_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, contents)
        _check(answer, "reassignment")
        return {
            (topic.name, one.partition_index): one.error_message or describe_code(one.error_code) or ""
            for topic in answer.responses
            for one in topic.partitions
            if one.error_code
        }

    def elect_preferred(self, places: Iterable[Place], timeout_ms: int = 60_000) -> dict[Place, str]:
        """Elect the preferred leaders; returns the errors of the elections that failed."""
        answers = self.elect(list(places), timeout_ms=timeout_ms)
        return {place: reason for place, (outcome, reason) in answers.items() if outcome == "failed"}

    def elect(
        self, places: Collection[Place] | None, *, unclean: bool = False, timeout_ms: int = 60_000
    ) -> dict[Place, tuple[str, str]]:
        """Elect preferred leaders, or if ``unclean`` any replica of a partition without a leader; None means all
        partitions. Returns for each partition the outcome (elected, not needed or failed) and the reason. With None,
        only partitions that needed an election are returned."""
        topics: dict[str, list[int]] = {}
        for topic, number in places or ():
            topics.setdefault(topic, []).append(number)
        wanted = [{"topic": name, "partitions": numbers} for name, numbers in topics.items()]
        contents = {
            "election_type": _UNCLEAN if unclean else _PREFERRED,
            "timeout": timeout_ms,
            "topic_partitions": None if places is None else wanted,
        }
        answer = self._ask_controller(ApiKey.ELECT_LEADERS, contents)
        _check(answer, "election")
        return {
            (topic.topic, one.partition_id): (
                _OUTCOMES.get(one.error_code, "failed"),
                one.error_message or describe_code(one.error_code) or "",
            )
            for topic in answer.replica_election_results
            for one in topic.partition_result
        }

    # Questions

    def _partitions(self, topics: Collection[str] | None) -> Iterator[PartitionStatus]:
        names = sorted(self._names() if topics is None else topics)
        for start in range(0, len(names), _AT_ONCE):
            cursor: Any = None
            while True:
                answer = self._cluster.ask_any(
                    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                    {"topics": [{"name": name} for name in names[start : start + _AT_ONCE]], "cursor": cursor},
                )
                for topic in answer.topics:
                    if not topic.error_code:  # deleted meanwhile
                        yield from (_seen(topic.name, one) for one in topic.partitions)
                if answer.next_cursor is None:
                    break
                cursor = vars(answer.next_cursor)

    def _names(self) -> list[str]:
        return [topic.name for topic in self._cluster.ask_any(ApiKey.METADATA, {"topics": None}).topics]

    def _with_moves(self, partitions: list[PartitionStatus]) -> list[PartitionStatus]:
        contents = {"timeout": 60_000, "topics": None}
        answer = self._ask_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, contents)
        _check(answer, "reassignments")
        moving = {(topic.name, one.partition_index): one for topic in answer.topics for one in topic.partitions}
        return [
            one
            if one.place not in moving
            else replace(
                one,
                adding=tuple(moving[one.place].adding_replicas),
                removing=tuple(moving[one.place].removing_replicas),
            )
            for one in partitions
        ]

    def _with_min_insync(self, partitions: list[PartitionStatus]) -> list[PartitionStatus]:
        found: dict[str, int] = {}
        names = iter(sorted({one.topic for one in partitions}))
        while some := list(islice(names, _AT_ONCE)):
            resources = [
                {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": (_MIN_INSYNC,)} for name in some
            ]
            for result in self._cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, {"resources": resources}).results:
                for config in result.configs:
                    with suppress(ValueError, TypeError):
                        found[result.resource_name] = int(config.value)
        return [replace(one, min_insync=found.get(one.topic)) for one in partitions]

    def _ends(self, node: int, partitions: Sequence[PartitionStatus]) -> Iterator[tuple[Place, int]]:
        """Log end offsets of a broker's own replicas, as far as it knows them."""
        topics: dict[str, list[Mapping[str, int]]] = {}
        for one in partitions:
            wanted = {"partition_index": one.number, "current_leader_epoch": -1, "timestamp": _LATEST}
            topics.setdefault(one.topic, []).append(wanted)
        if not topics:
            return
        answer = self._at(self._address(node)).ask(
            ApiKey.LIST_OFFSETS,
            {
                "replica_id": _DEBUGGING,
                "isolation_level": 0,
                "topics": [{"name": name, "partitions": wanted} for name, wanted in topics.items()],
            },
        )
        for topic in answer.topics:
            for found in topic.partitions:
                if not found.error_code:
                    yield (topic.name, found.partition_index), found.offset

    def _ask_controller(self, key: ApiKey, contents: Mapping[str, Any]) -> Message:
        """Ask the controller, or if it has just gone the first broker: Kafka's brokers forward the request, and any
        seglog broker serves it."""
        try:
            return self._at(self._controller()).ask(key, contents)
        except RequestFailedError:
            return self._cluster.ask_any(key, contents)

    def _address(self, node: int) -> HostPort:
        address = self._brokers().get(node)
        if address is None:
            raise RequestFailedError(f"broker {node} is not running")
        return address

    def _forget(self, node: int) -> None:
        """Do not use a failed connection again."""
        address = self._brokers().get(node)
        if address is not None:
            self._cluster.forget(address)


def _seen(topic: str, one: Message) -> PartitionStatus:
    return PartitionStatus(
        topic=topic,
        number=one.partition_index,
        replicas=tuple(one.replica_nodes),
        isr=tuple(one.isr_nodes),
        leader=one.leader_id if one.leader_id >= 0 else None,
        leader_epoch=one.leader_epoch,
        elr=tuple(one.eligible_leader_replicas or ()),
        last_known=tuple(one.last_known_elr or ()),
    )


def _check(answer: Message, what: str) -> None:
    reason = describe_code(answer.error_code)
    if reason is not None:
        raise RequestFailedError(f"{what}: {getattr(answer, 'error_message', None) or reason}")
