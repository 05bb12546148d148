"""Features of Kafka that seglog does not have. Clients get an error that makes them give up at once and says why.

The answers are those of a Kafka 4.4 with the feature switched off: without an authorizer, without SASL, with
``share.version`` and ``streams.version`` 0. There is no quorum of controllers whose members could change. Other APIs
are not advertised: Kafka's clients then name the missing API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey, name_of
from seglog.protocol.messages import Message

_NO_AUTHORIZER: Final = "No Authorizer is configured."
_NO_SASL: Final = "the listener has no SASL (check security.protocol), or the client has authenticated already"
_NO_STREAMS: Final = "seglog has no streams groups: set group.protocol=classic"
_NO_QUORUM: Final = "seglog has no KRaft quorum"
_GROUP_KINDS: Final[Mapping[ApiKey, str]] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: "seglog has no share groups",
    ApiKey.SHARE_FETCH: "seglog has no share groups",
    ApiKey.STREAMS_GROUP_HEARTBEAT: _NO_STREAMS,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: _NO_STREAMS,
}
"""Requests of members of share and streams groups, and what to tell them."""

_QUORUM_CHANGES: Final = (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UNREGISTER_CONTROLLER)


class UnsupportedApis:
    """Calls ``refused`` with each client that cannot go on."""

    def __init__(self, refused: Callable[[RequestContext, str], None]) -> None:
        self._refused = refused

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.SASL_HANDSHAKE: self.sasl_out_of_place,
            ApiKey.SASL_AUTHENTICATE: self.sasl_out_of_place,
            **dict.fromkeys(_GROUP_KINDS, self.group_of_another_kind),
            ApiKey.SHARE_GROUP_DESCRIBE: _describe_groups,
            ApiKey.STREAMS_GROUP_DESCRIBE: _describe_groups,
            **dict.fromkeys(_QUORUM_CHANGES, lambda _, __: _failed(ErrorCode.UNSUPPORTED_VERSION, _NO_QUORUM)),
            ApiKey.SHARE_ACKNOWLEDGE: lambda _, __: _failed(ErrorCode.UNSUPPORTED_VERSION),
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda request, _: {
                "groups": [
                    {"group_id": one.group_id, **_failed(ErrorCode.UNSUPPORTED_VERSION)} for one in request.groups
                ]
            },
            ApiKey.ALTER_SHARE_GROUP_OFFSETS: lambda _, __: _failed(ErrorCode.UNSUPPORTED_VERSION),
            ApiKey.DELETE_SHARE_GROUP_OFFSETS: lambda _, __: _failed(ErrorCode.UNSUPPORTED_VERSION),
        }

    def sasl_out_of_place(self, _: Message, context: RequestContext) -> Answer:
        """On a listener without SASL, or after authentication."""
        self._refused(context, f"{name_of(context.key)} is out of place: {_NO_SASL}")
        return _failed(ErrorCode.ILLEGAL_SASL_STATE, _NO_SASL)

    def group_of_another_kind(self, _: Message, context: RequestContext) -> Answer:
        why = _GROUP_KINDS[ApiKey(context.key)]
        self._refused(context, f"{name_of(context.key)} is not supported: {why}")
        return _failed(ErrorCode.UNSUPPORTED_VERSION, why)


def without_authorizer() -> Mapping[int, ApiHandler]:
    """The handlers of ACLs while there is no authorizer."""
    return {
        ApiKey.DESCRIBE_ACLS: lambda _, __: _failed(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER),
        ApiKey.CREATE_ACLS: lambda request, _: {
            "results": [_failed(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER) for _ in request.creations]
        },
        ApiKey.DELETE_ACLS: lambda request, _: {
            "filter_results": [_failed(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER) for _ in request.filters]
        },
    }


def _failed(code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": message}


def _describe_groups(request: Message, _: RequestContext) -> Answer:
    """Clients then ask for classic groups of these names."""
    return {"groups": [{"group_id": one, **_failed(ErrorCode.UNSUPPORTED_VERSION)} for one in request.group_ids]}
