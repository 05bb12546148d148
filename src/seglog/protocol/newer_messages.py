"""Messages of Kafka 4.4 that kio 0.6.5 lacks, as classes of kio's kind: each is an older message with its changes.

Fields and their order are those of Kafka 4.4's ``clients/src/main/resources/common/message/*.json``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any, Final, get_type_hints

from seglog.protocol.apis import ApiKey

_Fields = dict[str, tuple[Any, Any]]
"""Names, types and dataclass fields in the order of the wire."""


def newer_request(key: int, version: int) -> Any:
    """The class of a request that kio does not have; None if kio has it."""
    make = _REQUESTS.get((key, version))
    return None if make is None else make()


def newer_response(key: int, version: int) -> Any:
    make = _RESPONSES.get((key, version))
    return None if make is None else make()


def _request(key: ApiKey, version: int) -> Any:
    from kio.index import load_request_schema  # here and not above: a server is up sooner

    return load_request_schema(key, version)


def _response(key: ApiKey, version: int) -> Any:
    from kio.index import load_response_schema

    return load_response_schema(key, version)


def _of(message: Any) -> _Fields:
    hints = get_type_hints(message)
    return {
        one.name: (hints[one.name], dataclasses.field(default=one.default, metadata=one.metadata))
        for one in dataclasses.fields(message)
    }


def _field(kind: str, hint: Any, default: Any = dataclasses.MISSING) -> tuple[Any, Any]:
    return hint, dataclasses.field(default=default, metadata={"kafka_type": kind})


def _nested(hint: Any, default: Any = dataclasses.MISSING) -> tuple[Any, Any]:
    return hint, dataclasses.field(default=default)


def _array(element: Any) -> tuple[Any, Any]:
    return _nested(GenericAlias(tuple, (element, ...)))


def _texts() -> tuple[Any, Any]:
    return _field("string", tuple[str, ...], ())


def _like(model: Any, fields: _Fields, *, version: int, name: str = "", key: int | None = None) -> Any:
    """A class with ``fields``, and otherwise as ``model``."""
    named = name or model.__name__
    constants = {
        "__type__": model.__type__,
        "__version__": type(model.__version__)(version),
        "__flexible__": model.__flexible__,
        "__api_key__": model.__api_key__ if key is None else type(model.__api_key__)(key),
        "__header_schema__": model.__header_schema__,
    }
    made = dataclasses.make_dataclass(
        named,
        [(field, hint, how) for field, (hint, how) in fields.items()],
        namespace=constants,
        frozen=True,
        slots=True,
        kw_only=True,
    )
    made.__module__ = __name__
    return made


def _element(message: Any, field: str) -> Any:
    """The class of the elements of an array."""
    return get_type_hints(message)[field].__args__[0]


def _api_versions_request() -> Any:
    """Version 5 names the broker that the client means (KIP-1242)."""
    from kio.static.primitive import i32

    older = _request(ApiKey.API_VERSIONS, 4)
    more = {"cluster_id": _field("string", str | None, None), "node_id": _field("int32", i32, i32(-1))}
    return _like(older, _of(older) | more, version=5)


def _api_versions_response() -> Any:
    older = _response(ApiKey.API_VERSIONS, 4)
    return _like(older, _of(older), version=5)


def _delete_groups_request() -> Any:
    older = _request(ApiKey.DELETE_GROUPS, 2)
    return _like(older, _of(older), version=3)


def _delete_groups_response() -> Any:
    """Version 3 has the reason of each group's error."""
    older = _response(ApiKey.DELETE_GROUPS, 2)
    result = _element(older, "results")
    result = _like(result, _of(result) | {"error_message": _field("string", str | None, None)}, version=3)
    return _like(older, _of(older) | {"results": _array(result)}, version=3)


def _txn_offset_commit_request() -> Any:
    """Version 6 has topic ids in place of names (KIP-1319)."""
    older = _request(ApiKey.TXN_OFFSET_COMMIT, 5)
    fields = {
        "generation_id_or_member_epoch" if name == "generation_id" else name: field
        for name, field in _of(older).items()
    }
    return _like(older, fields | {"topics": _array(_topic_by_id(older))}, version=6)


def _txn_offset_commit_response() -> Any:
    older = _response(ApiKey.TXN_OFFSET_COMMIT, 5)
    return _like(older, _of(older) | {"topics": _array(_topic_by_id(older))}, version=6)


def _topic_by_id(message: Any) -> Any:
    from uuid import UUID

    topic = _element(message, "topics")
    fields = _of(topic)
    del fields["name"]
    return _like(topic, {"topic_id": _field("uuid", UUID | None)} | fields, version=6)


def _streams_group_heartbeat_request() -> Any:
    older = _request(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)
    return _like(older, _of(older), version=1)


def _streams_group_heartbeat_response() -> Any:
    """Version 1 has a lag of 64 bits, and says whether the topology's description is wanted (KIP-1331)."""
    from kio.static.primitive import i64

    older = _response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)
    fields: _Fields = {}
    for name, field in _of(older).items():
        if name != "acceptable_recovery_lag":
            fields[name] = field
        if name == "task_offset_interval":
            fields["acceptable_recovery_lag"] = _field("int64", i64, i64(-1))
        if name == "warmup_tasks":
            fields["topology_description_required"] = _field("bool", bool, default=False)
    return _like(older, fields, version=1)


def _streams_group_describe_request() -> Any:
    older = _request(ApiKey.STREAMS_GROUP_DESCRIBE, 0)
    more = {"include_topology_description": _field("bool", bool, default=False)}
    return _like(older, _of(older) | more, version=1)


def _streams_group_describe_response() -> Any:
    """Version 1 has the description of the topology (KIP-1331) and the assignor (KIP-1357)."""
    from kio.static.primitive import i8

    older = _response(ApiKey.STREAMS_GROUP_DESCRIBE, 0)
    group = _element(older, "groups")
    more = {
        "topology_description": _nested(_topology_description(group, version=1) | None, None),
        "topology_description_status": _field("int8", i8, i8(0)),
        "assignor_name": _field("string", str | None, None),
    }
    group = _like(group, _of(group) | more, version=1)
    return _like(older, _of(older) | {"groups": _array(group)}, version=1)


def _topology_description(model: Any, *, version: int) -> Any:
    """The nodes of a topology; the class is like ``model``, a nested one."""
    from kio.static.primitive import i8

    def nested(named: str, /, **fields: tuple[Any, Any]) -> Any:
        return _like(model, fields, version=version, name=named)

    node = nested(
        "TopologyDescriptionNode",
        name=_field("string", str),
        node_type=_field("int8", i8),
        source_topics=_texts(),
        sink_topic=_field("string", str | None, None),
        stores=_texts(),
        successors=_texts(),
    )
    subtopology = nested("TopologyDescriptionSubtopology", subtopology_id=_field("string", str), nodes=_array(node))
    store = nested("TopologyDescriptionGlobalStore", source=_nested(node), processor=_nested(node))
    return nested(
        "TopologyDescription",
        subtopologies=_array(subtopology),
        global_stores=_array(store),
    )


def _topology_update_request() -> Any:
    from kio.static.primitive import i32

    key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
    model = _request(ApiKey.STREAMS_GROUP_DESCRIBE, 0)
    nested = _element(_request(ApiKey.ADD_RAFT_VOTER, 0), "listeners")
    fields = {
        "group_id": _field("string", str),
        "member_id": _field("string", str),
        "topology_epoch": _field("int32", i32),
        "topology_description": _nested(_topology_description(nested, version=0)),
    }
    return _like(model, fields, version=0, name="StreamsGroupTopologyDescriptionUpdateRequest", key=key)


def _topology_update_response() -> Any:
    key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
    return _response_with_message("StreamsGroupTopologyDescriptionUpdateResponse", key)


def _unregister_controller_request() -> Any:
    from kio.static.primitive import i32

    model = _request(ApiKey.UNREGISTER_BROKER, 0)
    fields = {"controller_id": _field("int32", i32)}
    return _like(model, fields, version=0, name="UnregisterControllerRequest", key=ApiKey.UNREGISTER_CONTROLLER)


def _unregister_controller_response() -> Any:
    return _response_with_message("UnregisterControllerResponse", ApiKey.UNREGISTER_CONTROLLER)


def _response_with_message(name: str, key: ApiKey) -> Any:
    model = _response(ApiKey.UNREGISTER_BROKER, 0)
    return _like(model, _of(model), version=0, name=name, key=key)


_Make = Callable[[], Any]

_REQUESTS: Final[Mapping[tuple[int, int], _Make]] = {
    (ApiKey.API_VERSIONS, 5): _api_versions_request,
    (ApiKey.DELETE_GROUPS, 3): _delete_groups_request,
    (ApiKey.TXN_OFFSET_COMMIT, 6): _txn_offset_commit_request,
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 1): _streams_group_heartbeat_request,
    (ApiKey.STREAMS_GROUP_DESCRIBE, 1): _streams_group_describe_request,
    (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0): _topology_update_request,
    (ApiKey.UNREGISTER_CONTROLLER, 0): _unregister_controller_request,
}
_RESPONSES: Final[Mapping[tuple[int, int], _Make]] = {
    (ApiKey.API_VERSIONS, 5): _api_versions_response,
    (ApiKey.DELETE_GROUPS, 3): _delete_groups_response,
    (ApiKey.TXN_OFFSET_COMMIT, 6): _txn_offset_commit_response,
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 1): _streams_group_heartbeat_response,
    (ApiKey.STREAMS_GROUP_DESCRIBE, 1): _streams_group_describe_response,
    (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0): _topology_update_response,
    (ApiKey.UNREGISTER_CONTROLLER, 0): _unregister_controller_response,
}
