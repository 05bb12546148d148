"""Blocking requests over our own protocol code, for operations that confluent-kafka's admin client lacks.

These are: deleting a group's offsets, the sizes of partitions, and the defaults of all brokers. PLAINTEXT only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from types import TracebackType
from typing import Any, Final, Self

from seglog.client.bootstrap import HostPort, connect
from seglog.client.configs import ConfigValue
from seglog.core.error_codes import error_name
from seglog.core.errors import RequestFailedError
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import Message, read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class

_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">hhih")
_CLIENT_ID: Final = b"seglog"
_MAX_ANSWER: Final = 100 << 20
_BROKER: Final = 4
"""The resource type of a broker's configuration; an empty name means all brokers."""
SET: Final = 0
DELETE: Final = 1


class BrokerConnection:
    """A connection to one broker. Each request blocks up to ``timeout`` seconds.

    Raises `RequestFailedError`, which names the broker.
    """

    def __init__(self, addresses: list[HostPort], timeout: float) -> None:
        self._socket = connect(addresses, timeout)
        self._name = ",".join(map(str, addresses))
        self._number = 0
        try:
            answer = self._ask(ApiKey.API_VERSIONS, 0, {})
            _check(answer.error_code, f"{self._name}: ApiVersions")
        except BaseException:
            self.close()
            raise
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: ApiKey, contents: Mapping[str, Any]) -> Message:
        """The response in the newest version that both sides know.

        ``contents`` has the fields of every version that may be used; so has the response.
        """
        version = self._version(key)
        if version is None:
            raise RequestFailedError(f"{self._name}: the broker has no {key.name} that is known here")
        return self._ask(key, version, contents)

    def has(self, key: ApiKey) -> bool:
        """Whether the broker serves the API in a version that is known here."""
        return self._version(key) is not None

    def _version(self, key: ApiKey) -> int | None:
        ours, theirs = APIS[key], self._versions.get(key)
        if theirs is None:
            return None
        version: int = min(ours.high, theirs[1])
        return version if version >= max(ours.low, theirs[0]) else None

    def _ask(self, key: ApiKey, version: int, contents: Mapping[str, Any]) -> Message:
        api = APIS[key]
        self._number += 1
        head = _HEADER.pack(key, version, self._number, len(_CLIENT_ID)) + _CLIENT_ID
        if version >= api.flexible:
            head += b"\0"
        body = write_message(request_class(key, version), contents)
        try:
            self._socket.sendall(_SIZE.pack(len(head) + len(body)) + head + body)
            (size,) = _SIZE.unpack(self._receive(_SIZE.size))
            if not 4 <= size <= _MAX_ANSWER:
                raise RequestFailedError(f"{self._name}: a response of {size} bytes: this is not a Kafka broker")
            data = self._receive(size)
        except OSError as error:
            raise RequestFailedError(f"{self._name}: {key.name}: {error.strerror or error}") from error
        if _SIZE.unpack_from(data)[0] != self._number:
            raise RequestFailedError(f"{self._name}: a response to another request: this is not a Kafka broker")
        flexible = key != ApiKey.API_VERSIONS and version >= api.flexible
        return read_message(response_class(key, version), response_class(key, api.high), data, 5 if flexible else 4)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise RequestFailedError(f"{self._name}: the broker has closed the connection")
            data += piece
        return bytes(data)


class Admin:
    """Asks each broker what only that broker knows. Use as a context manager, in one thread."""

    def __init__(self, bootstrap: list[HostPort], timeout: float) -> None:
        self._timeout = timeout
        self._first = BrokerConnection(bootstrap, timeout)
        self._others: dict[HostPort, BrokerConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._first.close()
        for connection in self._others.values():
            connection.close()

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

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str | None]:
        """Delete a group's committed offsets; returns None or the reason of the failure for each partition."""
        topics: dict[str, list[Mapping[str, int]]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append({"partition_index": partition})
        wanted = [{"name": name, "partitions": numbers} for name, numbers in topics.items()]
        answer = self._at(self._coordinator(group)).ask(ApiKey.OFFSET_DELETE, {"group_id": group, "topics": wanted})
        _check(answer.error_code, f"group {group}")
        return {
            (topic.name, partition.partition_index): describe_code(partition.error_code)
            for topic in answer.topics
            for partition in topic.partitions
        }

    def describe_broker_defaults(self) -> list[ConfigValue]:
        """The dynamic defaults of all brokers."""
        resource = {"resource_type": _BROKER, "resource_name": "", "configuration_keys": None}
        answer = self._first.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})
        (result,) = answer.results
        _check(result.error_code, "broker defaults", result.error_message)
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
            _check(result.error_code, "broker defaults", result.error_message)

    def _metadata(self) -> Message:
        # No topics: before version 1, where an empty list means all, no broker of today answers.
        return self._first.ask(ApiKey.METADATA, {"topics": (), "allow_auto_topic_creation": False})

    def _brokers(self) -> dict[int, HostPort]:
        return {broker.node_id: HostPort(broker.host, broker.port) for broker in self._metadata().brokers}

    def _controller(self) -> HostPort:
        metadata = self._metadata()
        brokers = {broker.node_id: HostPort(broker.host, broker.port) for broker in metadata.brokers}
        if metadata.controller_id not in brokers:
            raise RequestFailedError("the cluster has no controller now")
        return brokers[metadata.controller_id]

    def _coordinator(self, group: str) -> HostPort:
        contents = {"key": group, "key_type": 0, "coordinator_keys": (group,)}
        answer = self._first.ask(ApiKey.FIND_COORDINATOR, contents)
        found = answer.coordinators[0] if answer.coordinators else answer
        _check(found.error_code, f"coordinator of group {group}", found.error_message)
        return HostPort(found.host, found.port)

    def _at(self, address: HostPort) -> BrokerConnection:
        if address not in self._others:
            self._others[address] = BrokerConnection([address], self._timeout)
        return self._others[address]


def describe_code(code: int) -> str | None:
    """The name of a Kafka error; None for code 0."""
    return error_name(code) if code else None


def _check(code: int, what: str, message: str | None = None) -> None:
    reason = describe_code(code)
    if reason is not None:
        raise RequestFailedError(f"{what}: {f'{reason}: {message}' if message else reason}")
