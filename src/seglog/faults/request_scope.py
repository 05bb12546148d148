"""The topics, partitions, groups and transactional ids in a request or an answer, found by kio's types.

One walk serves all APIs: a field is a topic's name because its type is ``TopicName``, and a partition because it is a
number with one of Kafka's names for it, next to or below a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, get_type_hints
from uuid import UUID

from seglog.faults.fault import Fault
from seglog.protocol.apis import ApiKey
from seglog.protocol.schema import FieldSpec, fields_of

__all__ = [
    "NO_SESSION",
    "MessageFields",
    "Names",
    "TopicNames",
    "fields_by_role",
    "is_incremental",
    "names_in",
    "opens_session",
    "without",
]

TopicNames = Callable[[UUID], str | None]
"""The name of a topic id; None if the broker does not have it."""
_PARTITION: Final = frozenset({"index", "partition_index", "partition", "partition_id"})
_PARTITIONS: Final = frozenset({"partitions", "partition_indexes"})
_TOPIC_RESOURCE: Final = 2
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
"""``key_type`` of FindCoordinator."""
_NEW_SESSION: Final = 0
NO_SESSION: Final = -1
"""``session_epoch`` of a Fetch that asks for a session, and of one that wants none (KIP-227)."""


class MessageFields(NamedTuple):
    """The fields of one of kio's classes by their role. A role that no field has is None or empty."""

    topic: str | None
    topic_id: str | None
    partition: str | None
    partitions: str | None
    """An array of partition numbers."""
    topics: str | None
    """An array of topic names."""
    groups: tuple[str, ...]
    transactional_ids: tuple[str, ...]
    error_code: str | None
    nested: tuple[FieldSpec, ...]


@cache
def fields_by_role(message: Any) -> MessageFields:
    hints = get_type_hints(message)
    specs = fields_of(message)

    def find(matches: Callable[[FieldSpec], bool]) -> str | None:
        return next((spec.name for spec in specs if matches(spec)), None)

    def typed(name: str) -> tuple[str, ...]:
        return tuple(spec.name for spec in specs if spec.nested is None and name in str(hints[spec.name]))

    topics = typed("TopicName")
    return MessageFields(
        topic=find(lambda spec: spec.name in topics and not spec.is_array),
        topic_id=find(lambda spec: spec.name == "topic_id"),
        partition=find(lambda spec: spec.name in _PARTITION and spec.kind == "int32" and not spec.is_array),
        partitions=find(lambda spec: spec.name in _PARTITIONS and spec.kind == "int32" and spec.is_array),
        topics=find(lambda spec: spec.name in topics and spec.is_array),
        groups=typed("GroupId"),
        transactional_ids=typed("TransactionalId"),
        error_code=find(lambda spec: spec.kind == "error_code"),
        nested=tuple(spec for spec in specs if spec.nested is not None),
    )


class Names(NamedTuple):
    topics: frozenset[tuple[str, int | None]]
    groups: frozenset[str]
    transactional_ids: frozenset[str]


def names_in(key: int, message: Any, value: Mapping[str, Any], topic_names: TopicNames) -> Names:
    """All that a message of kio's class ``message`` names."""
    topics: set[tuple[str, int | None]] = set()
    groups: set[str] = set()
    transactional_ids: set[str] = set()

    def walk(message: Any, value: Mapping[str, Any], topic: str | None) -> None:
        roles = fields_by_role(message)
        here = topic_of(roles, value, topic_names)
        topic = here or topic
        groups.update(_texts(value, roles.groups))
        transactional_ids.update(_texts(value, roles.transactional_ids))
        topics.update((one, None) for one in _array(value, roles.topics))
        if topic is not None:
            numbers = [value[roles.partition]] if roles.partition else list(_array(value, roles.partitions))
            topics.update((topic, number) for number in numbers)
            if here is not None and not numbers:
                topics.add((here, None))
        for spec in roles.nested:
            for one in _structs(value, spec):
                walk(spec.nested, one, topic)

    walk(message, value, None)
    if key == ApiKey.FIND_COORDINATOR:
        keys = {value["key"]} if value.get("key") else {*value.get("coordinator_keys", ())}
        kind = value.get("key_type", _GROUP_KEY)
        (groups if kind == _GROUP_KEY else transactional_ids if kind == _TRANSACTION_KEY else set()).update(keys)
    named = {topic for topic, number in topics if number is not None}
    return Names(
        frozenset((topic, number) for topic, number in topics if number is not None or topic not in named),
        frozenset(groups),
        frozenset(transactional_ids),
    )


def is_incremental(fetch: Any) -> bool:
    """Whether a decoded Fetch belongs to a session: it names only the partitions that changed (KIP-227)."""
    return bool(getattr(fetch, "session_epoch", NO_SESSION) > _NEW_SESSION)


def opens_session(fetch: Any) -> bool:
    """Whether a decoded Fetch names all of its partitions and asks for a session."""
    return bool(getattr(fetch, "session_epoch", NO_SESSION) == _NEW_SESSION)


def topic_of(roles: MessageFields, value: Mapping[str, Any], topic_names: TopicNames) -> str | None:
    """The topic that a struct is about, by its name or its id."""
    name = value.get(roles.topic) if roles.topic else None
    if not name and value.get("resource_type") == _TOPIC_RESOURCE:
        name = value.get("resource_name")
    topic_id = value.get(roles.topic_id) if roles.topic_id else None
    if not name and isinstance(topic_id, UUID):
        return topic_names(topic_id)
    return str(name) if name else None


def without(
    message: Any, value: Mapping[str, Any], fault: Fault, topic_names: TopicNames
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message without the partitions of the fault, and the message with no others."""

    def split(message: Any, value: Mapping[str, Any], topic: str | None) -> tuple[dict[str, Any] | None, ...]:
        """The two halves of the struct; None for an empty half."""
        roles = fields_by_role(message)
        topic = topic_of(roles, value, topic_names) or topic
        if topic is not None and roles.partition is not None:
            is_hit = fault.has(topic, value[roles.partition])
            return (None, dict(value)) if is_hit else (dict(value), None)
        sides = (dict(value), dict(value))
        counts = [0, 0]

        def keep(name: str, parts: tuple[tuple[Any, ...], ...]) -> None:
            for side, kept in enumerate(parts):
                sides[side][name] = kept
                counts[side] += len(kept)

        if topic is not None and roles.partitions is not None:
            keep(roles.partitions, _parted(value, roles.partitions, lambda one: fault.has(topic, one)))
        if roles.topics is not None:
            keep(roles.topics, _parted(value, roles.topics, lambda one: fault.has(one, None)))
        for spec in roles.nested:
            if spec.is_array and _is_about_topics(spec.nested):
                parts = [split(spec.nested, one, topic) for one in _structs(value, spec)]
                keep(spec.name, tuple(tuple(one[side] for one in parts if one[side] is not None) for side in (0, 1)))
        if any(counts):
            return tuple(one if count else None for one, count in zip(sides, counts, strict=True))
        is_hit = topic is not None and fault.has(topic, None)
        return (None, sides[1]) if is_hit else (sides[0], None)

    left, hit = split(message, value, None)
    return left or {}, hit or {}


def _parted(value: Mapping[str, Any], name: str, is_hit: Callable[[Any], bool]) -> tuple[tuple[Any, ...], ...]:
    found = list(_array(value, name))
    return tuple(one for one in found if not is_hit(one)), tuple(one for one in found if is_hit(one))


@cache
def _is_about_topics(message: Any) -> bool:
    roles = fields_by_role(message)
    mine = (roles.topic, roles.topic_id, roles.partition, roles.partitions, roles.topics)
    return any(mine) or any(_is_about_topics(spec.nested) for spec in roles.nested)


def _structs(value: Mapping[str, Any], spec: FieldSpec) -> Iterator[Mapping[str, Any]]:
    found = value.get(spec.name)
    if found is not None:
        yield from found if spec.is_array else (found,)


def _array(value: Mapping[str, Any], name: str | None) -> Iterator[Any]:
    yield from (value.get(name) or ()) if name else ()


def _texts(value: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        found = value.get(name)
        yield from (found,) if isinstance(found, str) else found or ()
