"""Every message in every version that is served: read as kio wrote it, written so that kio reads it."""

from __future__ import annotations

import io
import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from seglog.core.errors import InvalidRequestError
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import read_request, write_response
from seglog.protocol.schema import FieldSpec, fields_of, request_class, response_class
from tests.cases import case, is_long

VERSIONS = [(api.key, version) for api in APIS.values() for version in range(max(api.low, api.served), api.high + 1)]

SEEDS = 300 if is_long() else 10
"""Contents of each message in each version."""


def some(message: Any, rng: random.Random) -> dict[str, Any]:
    """Random contents for a message, as a handler gives them."""
    return {spec.name: _some_field(spec, rng) for spec in fields_of(message)}


def _some_field(spec: FieldSpec, rng: random.Random) -> Any:
    if spec.is_nullable and rng.random() < 0.2:
        return None
    if spec.is_array:
        return tuple(_some_value(spec, rng) for _ in range(rng.randrange(4)))
    return _some_value(spec, rng)


def _some_value(spec: FieldSpec, rng: random.Random) -> Any:
    if spec.nested is not None:
        return some(spec.nested, rng)
    match spec.kind:
        case "string":
            return "".join(rng.choices("abcé-.", k=rng.randrange(9)))
        case "bytes" | "records":
            return rng.randbytes(rng.randrange(200))
        case "bool":
            return rng.random() < 0.5
        case "uuid":
            return UUID(int=rng.getrandbits(128), version=4)
        case "error_code":
            return rng.randrange(-1, 100)
        case "datetime_i64":
            return rng.choice([-1 if spec.is_nullable else 0, rng.randrange(2**41)])
        case "timedelta_i32" | "timedelta_i64":
            return rng.randrange(-1, 2**31)
        case "float64":
            return rng.random()
    bits = int(spec.kind.removeprefix("u").removeprefix("int"))
    return rng.randrange(2**16) if spec.kind.startswith("u") else rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))


def plain(value: Any) -> Any:
    """A `Message` as dictionaries."""
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return {name: plain(each) for name, each in vars(value).items()} if hasattr(value, "__dict__") else value


def without_new(given: Any, read: Any) -> Any:
    """Of what was read the fields that were given."""
    if isinstance(given, dict):
        return {name: without_new(value, read[name]) for name, value in given.items()}
    if isinstance(given, tuple):
        assert len(given) == len(read)
        return tuple(without_new(one, other) for one, other in zip(given, read, strict=True))
    return read


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_request_is_read_as_it_was_written(key: int, version: int) -> None:
    message = request_class(key, version)
    for seed in range(SEEDS):
        case()
        contents = some(message, random.Random(seed))
        data = write_message(message, contents)
        read = plain(read_request(key, version, data))
        newest = {spec.name for spec in fields_of(request_class(key, APIS[key].high))}
        assert newest <= read.keys()
        reshaped = {"topics", "groups", "members", "coordinator_keys"} - contents.keys()
        same = {name: value for name, value in contents.items() if name not in reshaped and name != "topics"}
        assert without_new(same, read) == same
        for end in range(len(data)):
            with pytest.raises(InvalidRequestError):
                read_request(key, version, data[:end])
        assert plain(read_request(key, version, data + b"\1\0\0")) == read


def _shortest(message: Any, depth: int) -> dict[str, Any]:
    """Contents with the fewest bytes that still have elements in the arrays of the first ``depth`` levels."""
    return {spec.name: _shortest_field(spec, depth) for spec in fields_of(message) if spec.tag is None}


def _shortest_field(spec: FieldSpec, depth: int) -> Any:
    if spec.is_nullable and not spec.is_array:
        return None
    one = {"string": "", "bytes": b"", "records": b"", "uuid": None}.get(spec.kind, 0)
    value = one if spec.nested is None else _shortest(spec.nested, depth - spec.is_array)
    return (value,) * (9 if depth > 0 else 0) if spec.is_array else value


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_the_shortest_elements_of_arrays_are_read(key: int, version: int) -> None:
    for message in (request_class(key, version), response_class(key, version)):
        for depth in range(4):
            data = write_message(message, _shortest(message, depth))
            read_message(message, message, data, 0)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_kio_reads_what_is_answered(key: int, version: int) -> None:
    message = response_class(key, version)
    for seed in range(SEEDS):
        case()
        contents = some(message, random.Random(seed))
        data = write_message(message, contents)
        entity, size = entity_reader(message)(data, 0)
        assert size == len(data)
        out = io.BytesIO()
        entity_writer(message)(out, entity)
        assert out.getvalue() == data


@given(st.sampled_from(VERSIONS), st.binary(max_size=400))
def test_random_bytes_are_a_request_or_refused(which: tuple[int, int], data: bytes) -> None:
    case()
    try:
        read_request(*which, data)
    except InvalidRequestError:
        return


@given(st.sampled_from(VERSIONS), st.integers(0, 2**32), st.data())
def test_damaged_requests_are_read_or_refused(which: tuple[int, int], seed: int, data: st.DataObject) -> None:
    case()
    contents = bytearray(write_message(request_class(*which), some(request_class(*which), random.Random(seed))))
    if contents:
        at = data.draw(st.integers(0, len(contents) - 1))
        contents[at] = data.draw(st.integers(0, 255))
    try:
        read_request(*which, bytes(contents))
    except InvalidRequestError:
        return


@pytest.mark.parametrize("version", range(APIS[ApiKey.CREATE_TOPICS].low, APIS[ApiKey.CREATE_TOPICS].high + 1))
def test_configurations_that_several_topics_share_are_encoded_as_any_others(version: int) -> None:
    for seed in range(SEEDS):
        case()
        rng = random.Random(seed)
        message = response_class(ApiKey.CREATE_TOPICS, version)
        answer = some(message, rng)
        shared = some(response_class(ApiKey.CREATE_TOPICS, APIS[ApiKey.CREATE_TOPICS].high), rng)
        configs = [one for topic in shared["topics"] for one in topic["configs"] or ()]
        for topic in answer["topics"]:
            if rng.random() < 0.7:
                topic["configs"] = configs
            topic["topic_config_error_code"] = rng.choice([0, 0, 0, 29])
        assert write_response(ApiKey.CREATE_TOPICS, version, answer) == write_message(message, answer)
