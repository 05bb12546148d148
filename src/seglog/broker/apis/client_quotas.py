"""Quotas of clients (KIP-546): DescribeClientQuotas and AlterClientQuotas. Rules and messages are those of
``ClientQuotaControlManager`` and ``ClientQuotasImage``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from seglog.broker.offload import in_turns
from seglog.broker.quotas.client_quotas import (
    CLIENT_ID,
    CONNECTION,
    FETCH,
    IP,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    ClientQuotas,
    Entity,
)
from seglog.broker.requests import FAILURES, Answer, ApiError, ApiHandler, RequestContext, failure
from seglog.core.error_codes import ErrorCode
from seglog.core.types import MAX_INT32, MAX_INT64
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_TYPES: Final = (CLIENT_ID, IP, USER)
"""As Java's map of an entity orders them."""
_EXACT, _DEFAULT, _SPECIFIED = range(3)
"""Match types."""
_WHOLE: Final = {PRODUCE: ("LONG", float(MAX_INT64)), FETCH: ("LONG", float(MAX_INT64)), CONNECTION: ("INT", MAX_INT32)}
"""Quotas that are whole numbers, with Java's type and its largest value."""
_OF_CLIENTS: Final = frozenset({PRODUCE, FETCH, REQUEST, MUTATION})
_OF_IPS: Final = frozenset({CONNECTION})
_LEAST_FRACTION: Final = 1e-6


class ClientQuotaApis:
    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describe, ApiKey.ALTER_CLIENT_QUOTAS: self.alter}

    # DescribeClientQuotas

    def describe(self, request: Message, _: RequestContext) -> Answer:
        try:
            wanted = _filter(request.components)
        except ApiError as error:
            return {**failure(error), "entries": None}
        found = sorted(self._quotas, key=lambda one: [(kind, name or "") for kind, name in one[0]])
        return {
            "entries": [
                {"entity": _parts(entity), "values": [{"key": key, "value": quotas[key]} for key in sorted(quotas)]}
                for entity, quotas in found
                if _matches(dict(entity), wanted, is_strict=request.strict)
            ]
        }

    # AlterClientQuotas

    async def alter(self, request: Message, _: RequestContext) -> Answer:
        """Each entity is changed for itself; an entity that comes twice is refused the second time."""
        outcomes: dict[Entity, ApiError | None] = {}
        async for entry in in_turns(request.entries):
            entity = tuple(sorted({part.entity_type: part.entity_name for part in entry.entity}.items()))
            changes = {one.key: None if one.remove else one.value for one in entry.ops}
            try:
                if entity in outcomes or len(changes) < len(entry.ops):
                    raise _invalid(f"Ignoring duplicate entity {_shown(entity)}")
                outcomes[entity] = None
                await _check(entity, changes)
                if not request.validate_only:
                    await self._quotas.change(entity, changes)
            except FAILURES as error:
                outcomes[entity] = error if isinstance(error, ApiError) else ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return {
            "entries": [
                {"entity": _parts(entity), "error_code": 0, "error_message": None, **(failure(error) if error else {})}
                for entity, error in outcomes.items()
            ]
        }


def _parts(entity: Entity) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]


def _shown(entity: Entity) -> str:
    text = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{text}}})"


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


# What is asked for


def _filter(components: Sequence[Message]) -> dict[str, tuple[int, str | None]]:
    """Match type and name by entity type. `ApiError`."""
    found: dict[str, tuple[int, str | None]] = {}
    for one in components:
        kind, match_type, name = one.entity_type, one.match_type, one.match
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in found:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _TYPES:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise _invalid(f"Unknown match type {match_type}")
        if match_type == _EXACT and name is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match_type != _EXACT and name is not None:
            named = "DEFAULT" if match_type == _DEFAULT else "SPECIFIED"
            raise _invalid(f"Request specified MATCH_TYPE_{named}, but also specified a match string.")
        found[kind] = match_type, name
    if IP in found and len(found) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return found


def _matches(
    entity: Mapping[str, str | None], wanted: Mapping[str, tuple[int, str | None]], *, is_strict: bool
) -> bool:
    if is_strict and len(entity) != len(wanted):
        return False
    return all(
        kind in entity and (match_type == _SPECIFIED or entity[kind] == name)
        for kind, (match_type, name) in wanted.items()
    )


# What may be


async def _check(entity: Entity, changes: Mapping[str, float | None]) -> None:
    """`ApiError` if the entity, or one of its quotas, is not valid. A quota that is removed may have any name."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in _TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    kinds = dict(entity)
    if IP in kinds and len(kinds) > 1:
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    if IP in kinds and kinds[IP] is not None and not await _is_host(str(kinds[IP])):
        raise _invalid(f"{kinds[IP]} is not a valid IP or resolvable host.")
    valid = _OF_IPS if IP in kinds else _OF_CLIENTS
    for key, value in changes.items():
        why = None if value is None else _why_not(valid, key, value)
        if why is not None:
            raise _invalid(why)


def _why_not(valid: frozenset[str], key: str, value: float) -> str | None:
    if key not in valid:
        return f"Invalid configuration key {key}"
    if not isfinite(value):
        return f"Quota {key} must be a finite number"
    if value <= 0:
        return f"Quota {key} must be greater than 0"
    if key not in _WHOLE:
        return None
    named, largest = _WHOLE[key]
    if value > largest:
        return f"Proposed value for {key} is too large for {'an' if named == 'INT' else 'a'} {named}."
    return f"{key} cannot be a fractional value." if value % 1 > _LEAST_FRACTION else None


async def _is_host(name: str) -> bool:
    try:
        await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return True
