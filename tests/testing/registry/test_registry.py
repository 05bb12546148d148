"""The registry beside a broker, through Confluent's own client and the API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.testing import Broker
from seglog.testing.registry.api import RegistryApi
from seglog.testing.registry.state import LEVELS, RegistryState, Version, version_record
from seglog.testing.registry.state import Schema as StoredSchema
from tests.kit.confluent_registry import RegistryClientError, reference, registry_client, schema


def _record(*fields: Any, name: str = "Flight") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


N: dict[str, Any] = {"name": "n", "type": "int"}
ORIGIN: dict[str, Any] = {"name": "origin", "type": "string"}
ORIGIN_OR_NONE = {**ORIGIN, "default": ""}


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker(registry=True) as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Broker:
    running.reset()
    return running


@pytest.fixture
def client(broker: Broker) -> Iterator[Any]:
    with registry_client(broker.registry_url) as client:
        yield client


def _code(error: pytest.ExceptionInfo[Any]) -> tuple[int, int]:
    return error.value.http_status_code, error.value.error_code


def test_versions_and_ids(client: Any) -> None:
    first, second = schema(_record(N)), schema(_record(N, ORIGIN_OR_NONE))
    one, two = client.register_schema("f-value", first), client.register_schema("f-value", second)
    assert two == one + 1
    assert client.register_schema("f-value", first) == one
    assert client.register_schema("g-value", first) == one
    assert client.get_subjects() == ["f-value", "g-value"]
    assert client.get_versions("f-value") == [1, 2]
    latest = client.get_latest_version("f-value")
    assert (latest.version, latest.schema_id) == (2, two)
    assert json.loads(latest.schema.schema_str) == json.loads(second.schema_str)
    assert client.lookup_schema("f-value", first).version == 1
    assert client.get_schema_by_guid(latest.guid).schema_str == latest.schema.schema_str
    assert {(one.subject, one.version) for one in client.get_schema_versions(one)} == {("f-value", 1), ("g-value", 1)}


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("AVRO", ['"string"', '{"type": "string"}', '{"type":\n"string"}']),
        (
            "AVRO",
            [
                '{"type":"record","name":"R","namespace":"n","fields":[{"name":"x","type":"int"}]}',
                '{"fields": [{"type": "int", "name": "x"}], "name": "n.R", "type": "record"}',
                '{"type":"record","name":"n.R","fields":[{"name":"x","type":{"type":"int"}, "order": "ascending"}]}',
            ],
        ),
        ("JSON", ['{"type":"object"}', '{ "type" : "object" }']),
        (
            "PROTOBUF",
            [
                'syntax = "proto3"; message A { string x = 1; }',
                "syntax='proto3';\n\nmessage A\n{\n\tstring x=1;\n}\n",
            ],
        ),
    ],
)
def test_one_schema_has_one_id_however_it_is_written(client: Any, kind: str, texts: list[str]) -> None:
    ids = {client.register_schema(f"s{number}", schema(text, kind)) for number, text in enumerate(texts)}
    ids |= {client.register_schema("s0", schema(text, kind)) for text in texts}
    assert len(ids) == 1
    assert client.get_versions("s0") == [1]
    assert {client.lookup_schema("s0", schema(text, kind)).version for text in texts} == {1}


def test_the_order_of_properties_counts_unless_schemas_are_normalized(client: Any) -> None:
    one = schema('{"type":"object","required":["x"]}', "JSON")
    other = schema('{"required":["x"],"type":"object"}', "JSON")
    client.set_compatibility(level="NONE")
    assert client.register_schema("a", one) != client.register_schema("a", other)
    normal = {client.register_schema("b", each, normalize_schemas=True) for each in (one, other)}
    assert len(normal) == 1
    assert client.lookup_schema("b", one, normalize_schemas=True).version == 1


def test_a_registry_normalizes_all_schemas_if_it_is_configured_so() -> None:
    state = RegistryState()
    api = RegistryApi(state, lambda _: None)

    def ask(method: str, path: str, **body: Any) -> Any:
        return api.answer(method, path, json.dumps(body).encode()).body

    assert ask("PUT", "/config", compatibility="NONE") == {"compatibility": "NONE"}
    assert ask("PUT", "/config", normalize=True) == {"normalize": True}
    assert ask("GET", "/config") == {"compatibilityLevel": "NONE", "normalize": True}
    texts = ('{"type":"object","required":["x"]}', '{"required":["x"],"type":"object"}')
    ids = {ask("POST", "/subjects/c/versions", schemaType="JSON", schema=text)["id"] for text in texts}
    assert len(ids) == 1
    assert ask("PUT", "/config/d", normalize=False) == {"normalize": False}
    ids = {ask("POST", "/subjects/d/versions", schemaType="JSON", schema=text)["id"] for text in texts}
    assert len(ids) == 2
    assert ask("PUT", "/config", other=1)["error_code"] == 42203


def test_missing_objects_get_confluents_error_codes(client: Any) -> None:
    client.register_schema("f-value", schema(_record(N)))
    asks: list[tuple[Callable[[], object], int]] = [
        (lambda: client.get_latest_version("other"), 40401),
        (lambda: client.get_version("f-value", 7), 40402),
        (lambda: client.get_schema(99), 40403),
        (lambda: client.lookup_schema("f-value", schema('"int"')), 40403),
        (lambda: client.delete_subject("other"), 40401),
    ]
    for ask, code in asks:
        with pytest.raises(RegistryClientError) as error:
            ask()
        assert _code(error) == (404, code)
    for text in ('{"type": "record"}', "{", '"unknown"'):
        with pytest.raises(RegistryClientError) as error:
            client.register_schema("f-value", schema(text))
        assert _code(error) == (422, 42201)


@pytest.mark.parametrize(
    ("level", "added", "dropped"),
    [
        ("NONE", True, True),
        ("BACKWARD", False, True),
        ("FORWARD", True, False),
        ("FULL", False, False),
        ("FULL_TRANSITIVE", False, False),
    ],
)
def test_compatibility_of_a_new_version(client: Any, level: str, added: bool, dropped: bool) -> None:
    """A field without a default is added, or dropped."""
    client.set_compatibility(subject_name="a", level=level)
    client.set_compatibility(subject_name="d", level=level)
    narrow, wide = schema(_record(N)), schema(_record(N, ORIGIN))
    for subject, old, new, allowed in (("a", narrow, wide, added), ("d", wide, narrow, dropped)):
        client.register_schema(subject, old)
        assert client.test_compatibility(subject, new) == allowed
        if allowed:
            client.register_schema(subject, new)
        else:
            with pytest.raises(RegistryClientError) as error:
                client.register_schema(subject, new)
            assert _code(error) == (409, 409)
        assert len(client.get_versions(subject)) == 1 + allowed


def test_transitive_levels_compare_all_versions(client: Any) -> None:
    """The second version has a default for the field, which the third drops from the second."""
    versions = [
        schema(_record(N)),
        schema(_record(N, ORIGIN_OR_NONE)),
        schema(_record(N, ORIGIN)),
    ]
    for subject, level in (("last", "BACKWARD"), ("all", "BACKWARD_TRANSITIVE")):
        client.set_compatibility(subject_name=subject, level=level)
        for one in versions[:2]:
            client.register_schema(subject, one)
    assert client.register_schema("last", versions[2])
    with pytest.raises(RegistryClientError, match="version 1"):
        client.register_schema("all", versions[2])


def test_levels_and_modes(client: Any) -> None:
    assert client.get_compatibility() == "BACKWARD"
    client.set_compatibility(level="FULL")
    assert client.get_compatibility() == "FULL"
    with pytest.raises(RegistryClientError) as error:
        client.get_compatibility("f-value")
    assert _code(error) == (404, 40408)
    with pytest.raises(RegistryClientError) as error:
        client.set_compatibility(level="BEST")
    assert _code(error) == (422, 42203)
    client.update_mode("f-value", "READONLY")
    assert client.get_mode("f-value") == "READONLY"
    with pytest.raises(RegistryClientError) as error:
        client.register_schema("f-value", schema('"int"'))
    assert _code(error) == (422, 42205)
    assert client.register_schema("g-value", schema('"int"'))


def test_references(client: Any) -> None:
    place = _record({"name": "code", "type": "string"}, name="geo.Place")
    client.register_schema("places", schema(place))
    flight = _record({"name": "origin", "type": "geo.Place"})
    references = [reference("geo.Place", "places", 1)]
    number = client.register_schema("f-value", schema(flight, references=references))
    found = client.get_schema(number)
    assert [(one.name, one.subject, one.version) for one in found.references] == [("geo.Place", "places", 1)]
    assert client.get_referenced_by("places", 1) == [number]
    with pytest.raises(RegistryClientError) as error:
        client.delete_version("places", 1)
    assert _code(error) == (422, 42206)
    with pytest.raises(RegistryClientError) as error:
        client.register_schema("g-value", schema(flight))
    assert _code(error) == (422, 42201)


def test_deleted_first_and_then_for_good(client: Any) -> None:
    number = client.register_schema("f-value", schema('"int"'))
    client.register_schema("f-value", schema('"long"'))
    assert client.delete_version("f-value", 1) == 1
    assert client.get_versions("f-value") == [2]
    assert client.delete_subject("f-value") == [2]
    assert client.get_subjects() == []
    assert client.get_subjects(deleted=True) == ["f-value"]
    assert client.delete_subject("f-value", permanent=True) == [1, 2]
    assert client.get_subjects(deleted=True) == []
    assert client.get_schema(number).schema_str == '"int"'


@pytest.mark.parametrize("process", [False, True])
def test_all_of_it_is_there_after_a_restart(process: bool) -> None:
    with Broker(registry=True, process=process) as broker:
        url = broker.registry_url
        with registry_client(url) as client:
            client.register_schema("f-value", schema(_record(N)))
            client.set_compatibility(subject_name="f-value", level="NONE")
            client.delete_subject("f-value")
            client.register_schema("g-value", schema('"string"'))
        broker.restart(kill=process)
        assert broker.registry_url == url
        with registry_client(url) as client:
            assert client.get_subjects() == ["g-value"]
            assert client.get_subjects(deleted=True) == ["f-value", "g-value"]
            assert client.get_compatibility("f-value") == "NONE"
            assert client.register_schema("h-value", schema('"bytes"')) == 3


_SCHEMAS = [StoredSchema("AVRO", f'"{kind}"') for kind in ("int", "long", "string", "bytes")]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(_SCHEMAS), st.sampled_from(["add", "delete", "purge"])))
)
def test_a_compacted_topic_means_the_same(steps: list[tuple[str, StoredSchema, str]]) -> None:
    """Only the last record of each key is left, in the order of the log."""
    state = RegistryState()
    for change in state.configure(None, level="NONE", normalize=None):
        state.apply(*change)
    log = []
    for subject, stored, step in steps:
        changes: list[Any] = []
        if step == "add":
            changes = state.register(subject, stored)[1]
        elif subject in state.subjects(deleted=True):
            is_alive = subject in state.subjects()
            if is_alive == (step == "delete"):
                changes = state.delete_subject(subject, permanent=step == "purge")[1]
        for change in changes:
            state.apply(*change)
        log += changes
    last = {json.dumps(key): number for number, (key, _) in enumerate(log)}
    again = RegistryState()
    for number in sorted(last.values()):
        again.apply(*log[number])
    for deleted in (True, False):
        assert again.subjects(deleted=deleted) == state.subjects(deleted=deleted)
    for subject in state.subjects(deleted=True):
        assert again.versions(subject, deleted=True) == state.versions(subject, deleted=True)


def test_no_id_is_given_twice(broker: Broker) -> None:
    """Clients keep the schema of an id."""
    ids = []
    for text in ('"int"', '"string"'):
        with registry_client(broker.registry_url) as client:
            ids.append(client.register_schema("f-value", schema(text)))
            assert client.get_schema(ids[-1]).schema_str == text
        broker.reset()
    assert ids[0] != ids[1]


def test_records_are_confluents() -> None:
    """As Confluent's registry 7 writes them."""
    made = Version("f-value", 2, 5, StoredSchema("JSON", "{}"))
    assert version_record(made) == (
        {"keytype": "SCHEMA", "subject": "f-value", "version": 2, "magic": 1},
        {"subject": "f-value", "version": 2, "id": 5, "schemaType": "JSON", "schema": "{}", "deleted": False},
    )
    assert "NONE" in LEVELS
