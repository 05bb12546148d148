"""Errors in the answers of every API in every version, by their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from seglog.core.error_codes import ErrorCode
from seglog.faults.error_answers import changes_nothing, check, decoded, error_answer, failed_answer, joined
from seglog.faults.fault import Fault, FaultError
from seglog.faults.request_scope import fields_by_role, names_in, without
from seglog.protocol.apis import APIS, ApiKey, name_of
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import FieldSpec, fields_of, request_class, response_class

_ID = UUID(int=7)
_ERROR = ErrorCode.NOT_LEADER_OR_FOLLOWER
_VERSIONS = [(int(key), version) for key, api in APIS.items() for version in range(api.served, api.high + 1)]


def topic_name(topic_id: UUID) -> str | None:
    return "t" if topic_id == _ID else None


def sample(message: Any) -> dict[str, Any]:
    """A message with one element in each array, about partition 3 of topic t."""
    return {spec.name: _value(spec) for spec in fields_of(message) if spec.tag is None}


def _value(spec: FieldSpec) -> Any:
    if spec.nested is not None:
        one: Any = sample(spec.nested)
    elif spec.kind == "string":
        one = "t"
    elif spec.kind == "uuid":
        one = _ID
    elif spec.kind in ("bytes", "records"):
        one = b""
    else:
        one = False if spec.kind == "bool" else 0 if spec.kind == "error_code" else 3
    return (one,) if spec.is_array else one


def codes(message: Any, value: Mapping[str, Any]) -> Iterator[int]:
    roles = fields_by_role(message)
    if roles.error_code is not None:
        yield int(value[roles.error_code])
    for spec in roles.nested:
        found = value.get(spec.name)
        for one in () if found is None else found if spec.is_array else (found,):
            yield from codes(spec.nested, one)


@pytest.mark.parametrize("key", sorted({key for key, _ in _VERSIONS}), ids=name_of)
def test_every_api_can_fail_in_every_version(key: int) -> None:
    for version in (one for of, one in _VERSIONS if of == key):
        fault = Fault(effect="error", api=name_of(key), error=_ERROR)
        message = response_class(key, version)
        if changes_nothing(key):
            body = write_message(message, sample(message))
            found = decoded(key, version, failed_answer(key, version, body, fault, topic_name))
        else:
            found = error_answer(key, version, sample(request_class(key, version)), fault, topic_name)
            found = decoded(key, version, write_message(message, found))
        assert _ERROR in set(codes(message, found)), f"version {version}: {found}"


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.DELETE_RECORDS,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.OFFSET_DELETE,
    ],
)
def test_an_error_of_one_partition_leaves_the_others(key: ApiKey) -> None:
    """The request is split: one part is carried out, the other fails; the client gets one answer to both."""
    for version in (one for of, one in _VERSIONS if of == key):
        message = request_class(key, version)
        asked = sample(message)
        _add_partition(message, asked, 4)
        names = names_in(key, message, asked, topic_name)
        assert names.topics == {("t", 3), ("t", 4)}
        fault = Fault(effect="error", api=name_of(key), error=_ERROR, topic="t", partition=4)
        rest, hit = without(message, asked, fault, topic_name)
        assert names_in(key, message, rest, topic_name).topics == {("t", 3)}
        assert names_in(key, message, hit, topic_name).topics == {("t", 4)}
        answers = [
            error_answer(key, version, part, Fault(effect="error", error=code, topic="t"), topic_name)
            for part, code in ((rest, ErrorCode.UNKNOWN_SERVER_ERROR), (hit, _ERROR))
        ]
        answer = response_class(key, version)
        both = decoded(key, version, write_message(answer, joined(key, version, *answers)))
        assert names_in(key, answer, both, topic_name).topics == {("t", 3), ("t", 4)}
        found = [code for code in codes(answer, both) if code]
        assert sorted(found) == [ErrorCode.UNKNOWN_SERVER_ERROR, _ERROR], f"version {version}: {both}"


def _add_partition(message: Any, value: dict[str, Any], number: int) -> None:
    roles = fields_by_role(message)
    if roles.partitions is not None:
        value[roles.partitions] = (*value[roles.partitions], number)
    for spec in roles.nested:
        if not spec.is_array:
            continue
        inner = fields_by_role(spec.nested)
        if inner.partition is not None and inner.topic is None:
            value[spec.name] = (*value[spec.name], {**value[spec.name][0], inner.partition: number})
        for one in value[spec.name]:
            _add_partition(spec.nested, one, number)


def test_a_request_goes_to_the_side_of_its_topic() -> None:
    message = request_class(ApiKey.CREATE_TOPICS, 7)
    asked: dict[str, Any] = {
        "topics": ({"name": "t", "assignments": ()}, {"name": "u", "assignments": ()}),
        "timeout": 5,
    }
    fault = Fault(effect="error", error=_ERROR, topic="u")
    rest, hit = without(message, asked, fault, topic_name)
    assert [topic["name"] for topic in rest["topics"]] == ["t"]
    assert [topic["name"] for topic in hit["topics"]] == ["u"]
    assert without(message, {**asked, "topics": asked["topics"][1:]}, fault, topic_name)[0] == {}


def test_metadata_fails_by_topic_and_if_asked_by_partition() -> None:
    message = response_class(ApiKey.METADATA, 12)
    body = write_message(message, sample(message))

    def fail(**fields: Any) -> dict[str, Any]:
        fault = Fault(effect="error", api="Metadata", error=_ERROR, **fields)
        (topic,) = decoded(ApiKey.METADATA, 12, failed_answer(ApiKey.METADATA, 12, body, fault, topic_name))["topics"]
        return {"topic": topic["error_code"], "partition": topic["partitions"][0]["error_code"]}

    assert fail() == fail(topic="t") == {"topic": _ERROR, "partition": 0}
    assert fail(partition=3) == {"topic": 0, "partition": _ERROR}


def test_api_versions_of_an_unknown_version_are_answered_in_version_0() -> None:
    fault = Fault(effect="error", api="ApiVersions", error=ErrorCode.UNSUPPORTED_VERSION)
    assert failed_answer(ApiKey.API_VERSIONS, 4, b"", fault, topic_name) == b"\x00\x23\x00\x00\x00\x00"


def test_impossible_faults_are_refused_with_the_reason() -> None:
    for fault, why in (
        (Fault(effect="error", api="Produce", error=_ERROR, whole=True), "only for its entries"),
        (Fault(effect="error", api="Heartbeat", error=_ERROR, partition=0), "no error for a topic or partition"),
        (Fault(effect="throttle", api="SaslHandshake", seconds=1), "no throttle time"),
    ):
        with pytest.raises(FaultError, match=why):
            check(fault)
    check(Fault(effect="error", api="Fetch", error=_ERROR, whole=True))


def test_the_whole_fetch_fails_if_asked() -> None:
    fault = Fault(effect="error", api="Fetch", error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, whole=True)
    found = error_answer(ApiKey.FETCH, 12, sample(request_class(ApiKey.FETCH, 12)), fault, topic_name)
    assert found["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
