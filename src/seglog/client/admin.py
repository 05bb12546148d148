"""Blocking requests over our own protocol code, for operations that confluent-kafka's admin client lacks.

These are: groups of all protocols, deleting a group's offsets, the sizes of partitions, the defaults of all brokers,
and quotas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from seglog.client.bootstrap import HostPort
from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import GROUP, ClusterConnections
from seglog.client.connection import BrokerConnection, check_answer, describe_code
from seglog.client.security.security_config import PLAINTEXT, SecurityConfig
from seglog.core.errors import RequestFailedError
from seglog.protocol.apis import ApiKey


class ConfigValue(NamedTuple):
    """A key of a broker's or topic's configuration; ``value`` is None if it is sensitive."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool


_BROKER: Final = 4
"""The resource type of a broker's configuration; an empty name means all brokers."""
SET: Final = 0
DELETE: Final = 1


_EXACT_MATCH, _DEFAULT_MATCH = 0, 1


class EntityQuotas(NamedTuple):
    """The quotas of users, client ids or an address: names by type (None: the default), and values by quota."""

    entity: Mapping[str, str | None]
    quotas: Mapping[str, float]


class GroupListing(NamedTuple):
    """A group as its coordinator lists it.

    ``protocol`` is ``consumer`` for consumers, ``connect`` for Connect's workers, or empty. ``type`` is classic,
    consumer, share or streams. ``state`` and ``type`` are empty from brokers before Kafka 2.6 and 3.8.
    """

    group: str
    state: str
    type: str
    protocol: str


class Admin:
    """Asks each broker what only that broker knows. Use as a context manager, in one thread."""

    def __init__(self, bootstrap: list[HostPort], timeout: float, security: SecurityConfig = PLAINTEXT) -> None:
        config = ClientConfig(bootstrap=tuple(bootstrap), timeout=timeout, connect_timeout=timeout, security=security)
        self._cluster = ClusterConnections(config)
        self._cluster.seed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.close()

    def partition_sizes(self) -> dict[tuple[str, int, int], int]:
        """Bytes of each replica on disk, by topic, partition and broker."""
        sizes = {}
        for node, address in self._brokers().items():
            answer = self._at(address).ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
            for directory in answer.results:
                for topic in directory.topics:
                    for partition in topic.partitions:
                        sizes[topic.name, partition.partition_index, node] = partition.partition_size
        return sizes

    def groups(self) -> list[GroupListing]:
        """All groups, of all coordinators, by name."""
        found: dict[str, GroupListing] = {}
        for node, address in self._brokers().items():
            answer = self._at(address).ask(ApiKey.LIST_GROUPS, {"states_filter": (), "types_filter": ()})
            check_answer(answer.error_code, f"groups of broker {node}")
            for one in answer.groups:
                state, kind = getattr(one, "group_state", ""), getattr(one, "group_type", "")
                found[one.group_id] = GroupListing(one.group_id, state, kind.lower(), one.protocol_type)
        return [found[name] for name in sorted(found)]

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str | None]:
        """Delete a group's committed offsets; returns None or the reason of the failure for each partition."""
        topics: dict[str, list[Mapping[str, int]]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append({"partition_index": partition})
        wanted = [{"name": name, "partitions": numbers} for name, numbers in topics.items()]
        answer = self._at(self._cluster.coordinator(GROUP, group).address).ask(
            ApiKey.OFFSET_DELETE, {"group_id": group, "topics": wanted}
        )
        check_answer(answer.error_code, f"group {group}")
        return {
            (topic.name, partition.partition_index): describe_code(partition.error_code)
            for topic in answer.topics
            for partition in topic.partitions
        }

    def describe_broker_defaults(self) -> list[ConfigValue]:
        """The dynamic defaults of all brokers."""
        resource = {"resource_type": _BROKER, "resource_name": "", "configuration_keys": None}
        answer = self._cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})
        (result,) = answer.results
        check_answer(result.error_code, "broker defaults", result.error_message)
        return [
            ConfigValue(one.name, one.value, one.config_source, one.read_only, one.is_sensitive)
            for one in result.configs
        ]

    def alter_broker_defaults(self, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Set the dynamic defaults of all brokers; None removes a key."""
        configs = [
            {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
            for name, value in changes.items()
        ]
        resource = {"resource_type": _BROKER, "resource_name": "", "configs": configs}
        contents = {"resources": [resource], "validate_only": validate_only}
        answer = self._at(self._controller()).ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, contents)
        for result in answer.responses:
            check_answer(result.error_code, "broker defaults", result.error_message)

    def describe_client_quotas(self, entity: Mapping[str, str | None]) -> list[EntityQuotas]:
        """The quotas of this entity; of all entities if it is empty."""
        components = [
            {"entity_type": kind, "match_type": _DEFAULT_MATCH if name is None else _EXACT_MATCH, "match": name}
            for kind, name in entity.items()
        ]
        contents = {"components": components, "strict": bool(components)}
        answer = self._cluster.ask_any(ApiKey.DESCRIBE_CLIENT_QUOTAS, contents)
        check_answer(answer.error_code, "quotas", answer.error_message)
        return [
            EntityQuotas(
                {part.entity_type: part.entity_name for part in entry.entity},
                {one.key: one.value for one in entry.values},
            )
            for entry in answer.entries or ()
        ]

    def alter_client_quotas(
        self, entity: Mapping[str, str | None], changes: Mapping[str, float | None], *, validate_only: bool
    ) -> None:
        """Set quotas of an entity; None removes one."""
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
        ops = [
            {"key": name, "value": 0.0 if value is None else value, "remove": value is None}
            for name, value in changes.items()
        ]
        contents = {"entries": [{"entity": parts, "ops": ops}], "validate_only": validate_only}
        answer = self._at(self._controller()).ask(ApiKey.ALTER_CLIENT_QUOTAS, contents)
        for result in answer.entries:
            check_answer(result.error_code, "quotas", result.error_message)

    def _brokers(self) -> Mapping[int, HostPort]:
        return self._cluster.metadata(()).brokers

    def _controller(self) -> HostPort:
        metadata = self._cluster.metadata(())
        if metadata.controller not in metadata.brokers:
            raise RequestFailedError("the cluster has no controller now")
        return metadata.brokers[metadata.controller]

    def _at(self, address: HostPort) -> BrokerConnection:
        return self._cluster.at(address)
