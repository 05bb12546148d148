"""Configurations of topics, brokers and groups: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs,
ListConfigResources. Rules and messages are those of ``ConfigurationControlManager`` and ``ConfigAdminManager``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from seglog.broker.apis.config_rules import (
    broker_row,
    check_group_texts,
    check_topic_config,
    complaint,
    describe_broker,
    describe_defaults,
    describe_group,
    describe_refusals,
    describe_topic,
)
from seglog.broker.apis.group_configs import GroupConfigs
from seglog.broker.configuration import DEFAULT, Configuration
from seglog.broker.identity import Identity
from seglog.broker.offload import SLICE, in_turns
from seglog.broker.requests import FAILURES, Answer, ApiError, ApiHandler, RequestContext, failure
from seglog.broker.topics.topic_changes import TopicChanges
from seglog.broker.topics.topic_validation import check_topic_name
from seglog.broker.topics.topics import Topics
from seglog.cluster.model import REFUSED_REPLICAS, Refusal
from seglog.core.broker_config import (
    BROKER_KEYS,
    CREATION_RATE,
    DYNAMIC_KEYS,
    LISTENER_DYNAMIC_KEYS,
    BrokerConfig,
    listener_key,
    refusal,
)
from seglog.core.config import TOPIC_KEYS
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidConfigError
from seglog.core.kafka_broker_keys import dynamic_kafka_only_keys, kafka_only_keys
from seglog.core.settings import unknown
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message


class ConfigResource(IntEnum):
    """The types of resources that have a configuration here (``ConfigResource.Type``)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class AlterConfigOp(IntEnum):
    """The operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_Change = tuple[str, AlterConfigOp, str | None]
_Update = Callable[[Mapping[str, str]], Mapping[str, str]]
_MIN_INSYNC: Final = "min.insync.replicas"
"""All brokers of a cluster share it: the writers of ISR and ELR and the controller must use the same value."""
_ELSEWHERE: Final = {8: "loggers of a broker", 16: "client metrics"}


class ConfigApis:
    """Describes and changes configurations; calls ``took_effect`` with a broker's new one."""

    def __init__(
        self,
        topics: Topics,
        changes: TopicChanges,
        configuration: Configuration,
        took_effect: Callable[[BrokerConfig], None],
        check: Callable[[BrokerConfig, BrokerConfig], None],
        identity: Identity,
        groups: GroupConfigs,
        refused: Callable[[], Mapping[str, Refusal]],
    ) -> None:
        """``check`` raises `InvalidConfigError` if a broker's configuration cannot take the place of the one before it.
        ``refused`` are this broker's replicas that it does not serve, by ``<topic>-<number>``."""
        self._topics = topics
        self._changes = changes
        self._configuration = configuration
        self._took_effect = took_effect
        self._check = check
        self._identity = identity
        self._groups = groups
        self._refused = refused

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.ALTER_CONFIGS: self.alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
            ApiKey.LIST_CONFIG_RESOURCES: self.list_config_resources,
        }

    # Describe and list

    async def describe_configs(self, request: Message, _: RequestContext) -> Answer:
        """A few bytes ask for some hundred keys: other connections have their turn after so many, and a resource may be
        named only once without ``configuration_keys``."""
        results = []
        described: set[tuple[int, str]] = set()
        keys = 0
        for resource in request.resources:
            result: dict[str, Any] = {
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "error_message": "",
            }
            try:
                if not resource.configuration_keys:
                    _check_first(described, resource)
                found = self._describe(resource)
            except FAILURES as error:
                result.update(failure(error))
            else:
                if not request.include_synonyms:
                    found = [{**config, "synonyms": ()} for config in found]
                if not getattr(request, "include_documentation", False):
                    found = [{**config, "documentation": None} for config in found]
                result["configs"] = found
                keys += len(found)
            results.append(result)
            keys += 1
            if keys >= SLICE:
                await asyncio.sleep(0)
                keys = 0
        return {"results": results}

    def _describe(self, resource: Message) -> list[dict[str, Any]]:
        name = resource.resource_name
        # An empty list asks for all, as Kafka takes it.
        wanted = frozenset(resource.configuration_keys or ()) or None
        if resource.resource_type == ConfigResource.TOPIC:
            check_topic_name(name)
            if name not in self._topics.by_name:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            return describe_topic(self._topics.overrides(name), self._configuration, wanted)
        if resource.resource_type == ConfigResource.BROKER:
            if not name:
                return describe_defaults(self._configuration, wanted)
            if not name.isdecimal():
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
            expected = self._configuration.node_id
            if int(name) != expected:
                message = f"Unexpected broker id, expected {expected} or empty string, but received {name}"
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
            found = describe_broker(self._configuration, wanted)
            return [*found, describe_refusals(self._refused())] if REFUSED_REPLICAS in (wanted or ()) else found
        if resource.resource_type == ConfigResource.GROUP:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return describe_group(self._groups.given(name), self._configuration, wanted)
        raise _not_served(resource.resource_type)

    def list_config_resources(self, request: Message, context: RequestContext) -> Answer:
        if context.version == 0:
            return {"config_resources": ()}  # version 0 asks for client metrics only
        asked = set(request.resource_types) or set(ConfigResource)
        if not asked <= {*ConfigResource, *_ELSEWHERE}:
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
        found = []
        if ConfigResource.BROKER in asked:
            kind = int(ConfigResource.BROKER)
            found += [{"resource_name": str(node), "resource_type": kind} for node in self._identity.registered()]
        if ConfigResource.TOPIC in asked:
            kind = int(ConfigResource.TOPIC)
            found += [{"resource_name": topic.name, "resource_type": kind} for topic in self._topics]
        if ConfigResource.GROUP in asked:
            kind = int(ConfigResource.GROUP)
            found += [{"resource_name": group, "resource_type": kind} for group in self._groups.names()]
        return {"config_resources": found}

    # Alter

    async def alter_configs(self, request: Message, _: RequestContext) -> Answer:
        """Replace all keys of a resource by those of the request."""

        def changes(resource: Message) -> list[_Change]:
            return [(config.name, AlterConfigOp.SET, config.value) for config in resource.configs]

        return await self._alter_all(request, changes, replace=True)

    async def incremental_alter_configs(self, request: Message, _: RequestContext) -> Answer:
        def changes(resource: Message) -> list[_Change]:
            found: list[_Change] = []
            for config in resource.configs:
                if config.config_operation not in set(AlterConfigOp):
                    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {config.config_operation}")
                found.append((config.name, AlterConfigOp(config.config_operation), config.value))
            return found

        return await self._alter_all(request, changes, replace=False)

    async def _alter_all(
        self, request: Message, changes: Callable[[Message], list[_Change]], *, replace: bool
    ) -> Answer:
        times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
        responses: dict[tuple[int, str], dict[str, Any]] = {}
        async for resource in in_turns(request.resources):
            kind, name = key = (resource.resource_type, resource.resource_name)
            responses[key] = {"resource_type": kind, "resource_name": name}
            try:
                if times[key] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                await self._alter(kind, name, changes(resource), replace=replace, validate_only=request.validate_only)
            except FAILURES as error:
                responses[key].update(failure(error))
        return {"responses": list(responses.values())}

    async def _alter(
        self, kind: int, name: str, changes: Sequence[_Change], *, replace: bool, validate_only: bool
    ) -> None:
        if max(Counter(key for key, _, _ in changes).values(), default=0) > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        nulls = [key for key, operation, value in changes if value is None and operation is not AlterConfigOp.DELETE]
        if nulls:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
        if kind == ConfigResource.TOPIC:
            await self._alter_topic(name, changes, replace=replace, validate_only=validate_only)
        elif kind == ConfigResource.BROKER:
            await self._alter_broker(name, changes, replace=replace, validate_only=validate_only)
        elif kind == ConfigResource.GROUP:
            await self._alter_group(name, changes, replace=replace, validate_only=validate_only)
        else:
            raise _not_served(kind)

    async def _alter_topic(self, name: str, changes: Sequence[_Change], *, replace: bool, validate_only: bool) -> None:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(name)
        if name not in self._topics.by_name:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        before = self._topics.overrides(name)
        after = check_topic_config(_changed(before, changes, self._topic_value, replace=replace))
        if validate_only:
            return
        removed: dict[str, str | None] = {key: None for key in before if key not in after}
        await self._changes.alter(name, {**removed, **after})

    def _topic_value(self, key: str) -> str:
        row = TOPIC_KEYS[key]
        return row.rule.format(getattr(self._configuration.current.directory.topics, row.attribute, row.default))

    async def _alter_broker(self, name: str, changes: Sequence[_Change], *, replace: bool, validate_only: bool) -> None:
        expected = self._configuration.node_id
        if name and not name.isdecimal():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
        if name and int(name) != expected:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected}, but received {name}")
        of_listeners = {key: found[2] for key, _, _ in changes if (found := listener_key(key)) is not None}
        of_one_broker = [key for key in of_listeners if not key.endswith(f".{CREATION_RATE}")]
        if of_one_broker and not name:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs at default cluster level, broker id must be specified: "
                f"[{', '.join(of_one_broker)}]",
            )
        without_prefix = [key for key, _, _ in changes if key in LISTENER_DYNAMIC_KEYS]
        if without_prefix:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "These security configs can be dynamically updated only per-listener using the listener prefix: "
                f"[{', '.join(without_prefix)}]",
            )
        for key, operation, text in changes:
            row = of_listeners.get(key) or broker_row(key)
            refused = None if text is None else refusal(key, text)
            if refused is not None:
                raise ApiError(ErrorCode.INVALID_CONFIG, refused)
            if row is None:
                if operation is AlterConfigOp.DELETE:
                    continue
                raise ApiError(ErrorCode.INVALID_CONFIG, str(unknown(key, BROKER_KEYS, "broker configuration")))
            why = complaint(row, text) if operation is AlterConfigOp.SET and text is not None else None
            if why is not None:
                raise ApiError(ErrorCode.INVALID_REQUEST, why)
        if name and self._configuration.current.cluster_store and any(key == _MIN_INSYNC for key, _, _ in changes):
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"Broker-level {_MIN_INSYNC} cannot be altered while ELR is enabled."
            )
        dynamic = DYNAMIC_KEYS | dynamic_kafka_only_keys()
        known = BROKER_KEYS.keys() | kafka_only_keys().keys()
        fixed = [key for key, _, _ in changes if key in known and key not in dynamic]
        if fixed:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(fixed)}]")

        def update(before: Mapping[str, str]) -> Mapping[str, str]:
            return _changed(before, changes, self._broker_value, replace=replace)

        try:
            await self._configuration.change(
                str(expected) if name else DEFAULT,
                update,
                self._changes,
                self._took_effect,
                check=self._check,
                validate_only=validate_only,
            )
        except InvalidConfigError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error

    async def _alter_group(self, name: str, changes: Sequence[_Change], *, replace: bool, validate_only: bool) -> None:
        def update(before: Mapping[str, str]) -> Mapping[str, str]:
            after = _changed(before, changes, lambda _: "", replace=replace)
            return check_group_texts(after, self._groups.bounds)

        if not name:
            _changed({}, changes, lambda _: "", replace=replace)  # whose errors come first
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")

        await self._groups.change(name, update, validate_only=validate_only)

    def _broker_value(self, key: str) -> str:
        row = broker_row(key)
        assert row is not None
        current = self._configuration.current
        given = current.given.get(key) or current.without_effect.get(key)
        return given or row.rule.format("" if row.default is None else row.default)


def _changed(
    before: Mapping[str, str], changes: Sequence[_Change], value_of: Callable[[str], str], *, replace: bool
) -> dict[str, str]:
    """The texts after the changes. APPEND and SUBTRACT start from ``value_of`` a key that was not given."""
    after = {} if replace else dict(before)
    for key, operation, text in changes:
        if operation is AlterConfigOp.DELETE or text is None:
            after.pop(key, None)
            continue
        if operation is AlterConfigOp.SET:
            after[key] = text
            continue
        row = TOPIC_KEYS.get(key) or broker_row(key)
        if row is None or row.rule.type != "list":
            message = f"Can't {operation.name} to key {key} because its type is not LIST."
            raise ApiError(ErrorCode.INVALID_CONFIG, message)
        items = [item for item in (after[key] if key in after else value_of(key)).split(",") if item]
        given = [item.strip() for item in text.split(",") if item.strip()]
        if operation is AlterConfigOp.APPEND:
            items += [item for item in given if item not in items]
        else:
            items = [item for item in items if item not in given]
        after[key] = ",".join(items)
    return after


def _check_first(described: set[tuple[int, str]], resource: Message) -> None:
    """`ApiError` for a resource that is among ``described``; otherwise it is added."""
    one = resource.resource_type, resource.resource_name
    if one in described:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{one[1]!r} appears more than once without configuration keys")
    described.add(one)


def _not_served(kind: int) -> ApiError:
    if kind in _ELSEWHERE:
        return ApiError(ErrorCode.INVALID_REQUEST, f"seglog has no configurations of {_ELSEWHERE[kind]}")
    return ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
