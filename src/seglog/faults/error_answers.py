"""Answers that report an error, for any API: the response's schema says where its error codes are.

Kafka's own ``getErrorResponse`` of each request class decides the same by hand. Here one rule decides. An error for a
topic or a partition goes to their entries. Any other error goes to the outermost entries that have a code (the topics
of Metadata, the partitions of Produce, the groups of DescribeGroups), or to the whole answer if no entry has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from seglog.core.error_codes import ErrorCode
from seglog.faults.fault import API_VERSIONS, Fault, FaultError
from seglog.faults.request_scope import TopicNames, fields_by_role, topic_of
from seglog.protocol.apis import ApiKey, name_of
from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import as_mapping, read_answer
from seglog.protocol.schema import FieldSpec, fields_of, request_class, response_class
from seglog.protocol.throttle import has_throttle

_READS: Final = frozenset(
    {
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.API_VERSIONS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        # The broker refuses these.
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    }
)
"""Requests that change nothing: they are carried out, and the codes of the answer are replaced."""
_WHOLE_FIRST: Final = frozenset(
    {ApiKey.LEAVE_GROUP, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE, ApiKey.ELECT_LEADERS}
    | {ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS}
)
"""Their clients check the code of the whole answer before its entries, where the version has it."""


def changes_nothing(key: int) -> bool:
    return key in _READS


def check(fault: Fault) -> None:
    """`FaultError` if no version of the API has an answer with a place for the fault."""
    if fault.key is None or fault.effect not in ("error", "throttle"):
        return
    from seglog.protocol.apis import APIS

    newest = response_class(fault.key, APIS[fault.key].high)
    if fault.effect == "throttle":
        if not has_throttle(newest):
            raise FaultError(f"an answer to {name_of(fault.key)} has no throttle time")
    elif fault.whole and fields_by_role(newest).error_code is None:
        raise FaultError(f"an answer to {name_of(fault.key)} has errors only for its entries: leave `whole` out")
    elif fault.names_topic and not any(_has_code(spec.nested) for spec in fields_by_role(newest).nested):
        raise FaultError(f"an answer to {name_of(fault.key)} has no error for a topic or partition")
    elif not _has_code(newest):
        raise FaultError(f"an answer to {name_of(fault.key)} has no error code")


def error_answer(
    key: int, version: int, request: Mapping[str, Any], fault: Fault, topic_names: TopicNames
) -> dict[str, Any]:
    """The answer to a request of this version that was not carried out. `FaultError` if it has no place for it."""
    message = response_class(key, version)
    answer = _skeleton(message, request_class(key, version), request)
    return _with_code(key, message, answer, fault, topic_names)


def failed_answer(key: int, version: int, body: bytes, fault: Fault, topic_names: TopicNames) -> bytes:
    """The body of an answer, with the fault's error in it. `FaultError` if it has no place for it."""
    if key == API_VERSIONS and fault.error == ErrorCode.UNSUPPORTED_VERSION:
        version = 0  # which every client can read (KIP-511)
        return write_message(response_class(key, version), {"error_code": fault.error})
    message = response_class(key, version)
    return write_message(message, _with_code(key, message, decoded(key, version, body), fault, topic_names))


def decoded(key: int, version: int, body: bytes) -> dict[str, Any]:
    """The body of an answer as mappings."""
    found: dict[str, Any] = as_mapping(read_answer(key, version, body))
    return found


def joined(key: int, version: int, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two answers to parts of one request as one: entries of the same topic come together."""
    return _joined(response_class(key, version), first, second)


def _joined(message: Any, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(first)
    for spec in fields_by_role(message).nested:
        if not spec.is_array:
            continue
        entries = list(first.get(spec.name) or ())
        for other in second.get(spec.name) or ():
            at = next((i for i, one in enumerate(entries) if _is_same(spec.nested, one, other)), None)
            if at is None:
                entries.append(other)
            else:
                entries[at] = _joined(spec.nested, entries[at], other)
        found[spec.name] = tuple(entries)
    return found


def _is_same(message: Any, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    roles = fields_by_role(message)
    names = [name for name in (roles.topic, roles.topic_id, *roles.transactional_ids, *roles.groups) if name]
    return bool(names) and all(first.get(name) == second.get(name) for name in names)


# The schema's places for errors


def _has_code(message: Any) -> bool:
    roles = fields_by_role(message)
    return roles.error_code is not None or any(_has_code(spec.nested) for spec in roles.nested)


def _with_code(key: int, message: Any, answer: dict[str, Any], fault: Fault, topic_names: TopicNames) -> dict[str, Any]:
    code = fields_by_role(message).error_code
    is_whole = fault.whole or (not fault.names_topic and key in _WHOLE_FIRST)
    changed, count = answer, 0
    if not (is_whole and code is not None):
        changed, count = _with_codes_of_entries(message, answer, fault, topic_names, None)
    if not count:
        if code is None or fault.names_topic:
            raise FaultError(f"this answer to {name_of(key)} has no entry for error {fault.error}")
        changed = {**answer, code: fault.error}
    return changed


def _with_codes_of_entries(
    message: Any, value: dict[str, Any], fault: Fault, topic_names: TopicNames, topic: str | None
) -> tuple[dict[str, Any], int]:
    """The struct with codes in its entries, and how many there are."""
    found, total = dict(value), 0
    for spec in fields_by_role(message).nested:
        if not spec.is_array or not _has_code(spec.nested) or not value.get(spec.name):
            continue
        entries = []
        for entry in value[spec.name]:
            roles = fields_by_role(spec.nested)
            here = topic_of(roles, entry, topic_names) or topic
            number = entry.get(roles.partition) if roles.partition else None
            is_inside = fault.names_topic and here is None  # of the entries that name topics
            if fault.names_topic and here is not None and not fault.has(here, number):
                entries.append(entry)
                continue
            # A partition's error goes to its own entry where there are such; any other to the outermost code.
            count = 0
            if is_inside or roles.error_code is None or (fault.partition is not None and number is None):
                entry, count = _with_codes_of_entries(spec.nested, entry, fault, topic_names, here)
            if not count and roles.error_code is not None and not is_inside:
                entry, count = _with_error(spec.nested, entry, fault.error), 1
            total += count
            entries.append(entry)
        found[spec.name] = tuple(entries)
    return found, total


def _with_error(message: Any, entry: Mapping[str, Any], error: int) -> dict[str, Any]:
    """An entry that failed has no records and no positions, as Kafka's."""
    code = fields_by_role(message).error_code
    assert code is not None
    cleared = {spec.name: None for spec in fields_of(message) if spec.kind == "records"}
    unset = {spec.name: -1 for spec in fields_of(message) if spec.name in _POSITIONS and spec.name in entry}
    return {**entry, **cleared, **unset, code: error}


_POSITIONS: Final = frozenset({"base_offset", "high_watermark", "last_stable_offset", "log_start_offset", "offset"})


def _skeleton(message: Any, request: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A struct of an answer with an entry for each entry of the request, and nothing else."""
    found: dict[str, Any] = {}
    theirs = {spec.name: spec for spec in fields_of(request) if spec.tag is None}
    for spec in fields_of(message):
        if spec.nested is None:
            if spec.name in theirs and not spec.is_array and theirs[spec.name].nested is None:
                found[spec.name] = asked[spec.name]
        elif spec.is_array and _has_code(spec.nested):
            found[spec.name] = tuple(_entries(spec.nested, request, asked))
    found |= _renamed(message, request, asked)
    return found


def _entries(entry: Any, request: Any, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    mine = fields_by_role(entry)
    for spec in fields_of(request):
        if not spec.is_array or not _is_counterpart(entry, spec):
            continue
        for one in asked.get(spec.name) or ():
            if spec.nested is not None:
                yield _skeleton(entry, spec.nested, one)
            else:
                name = mine.partition or mine.topic or next(iter((*mine.groups, *mine.transactional_ids)))
                yield {name: one}
        return


def _is_counterpart(entry: Any, asked: FieldSpec) -> bool:
    """Whether the entries of an answer belong to this array of the request: both are about the same thing."""
    mine = fields_by_role(entry)
    if asked.nested is None:
        texts = bool(mine.topic or mine.groups or mine.transactional_ids)
        return asked.kind == ("int32" if mine.partition else "string" if texts else "")
    theirs = fields_by_role(asked.nested)
    pairs: tuple[tuple[object, object], ...] = (
        (mine.topic or mine.topic_id, theirs.topic or theirs.topic_id),
        (mine.partition, theirs.partition),
        (mine.transactional_ids, theirs.transactional_ids),
        (mine.groups, theirs.groups),
    )
    if any(one and other for one, other in pairs):
        return True
    names = {spec.name for spec in fields_of(entry)} & {spec.name for spec in fields_of(asked.nested)}
    return bool(names - {"tagged_fields"})


def _renamed(message: Any, request: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Topic and partition, which requests and answers may call by different names."""
    mine, theirs = fields_by_role(message), fields_by_role(request)
    pairs: list[tuple[str | None, str | None]] = [(mine.topic, theirs.topic), (mine.partition, theirs.partition)]
    return {one: asked[other] for one, other in pairs if one is not None and other is not None}
