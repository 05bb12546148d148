from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seglog.core.errors import RequestFailedError
from seglog.testing import Broker
from seglog.values.registry import Registry, SchemaNotFoundError, SchemaRefusedError
from seglog.values.value_options import RegistryConfig
from tests.kit.confluent_registry import reference, registry_client, schema
from tests.values.registries import Asked, answering

ONE = {"schema": '"int"', "id": 7, "version": 1, "subject": "s"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(registry=True) as broker:
        yield broker


def _client(*urls: str, **more: Any) -> Registry:
    return Registry(RegistryConfig(urls=urls, timeout=60, **more))


def test_schemas_with_all_that_they_refer_to(broker: Broker) -> None:
    with registry_client(broker.registry_url) as theirs:
        theirs.register_schema("a", schema('{"type": "fixed", "name": "A", "size": 2}'))
        theirs.register_schema(
            "b",
            schema(
                '{"type": "record", "name": "B", "fields": [{"name": "a", "type": "A"}]}',
                references=[reference("A", "a", 1)],
            ),
        )
        text = '{"type":"record","name":"C","fields":[{"name":"b","type":"B"},{"name":"a","type":"A"}]}'
        references = [reference("B", "b", 1), reference("A", "a", 1)]
        number = theirs.register_schema("c/value", schema(text, references=references))
        guid = theirs.get_latest_version("c/value").guid
    ours = _client(broker.registry_url)
    found = ours.schema(number)
    assert (found.kind, found.text) == ("AVRO", text)
    assert [name for name, _ in found.references] == ["A", "B"]
    latest = ours.latest("c/value")
    assert (latest.version, latest.schema_id, latest.schema) == (1, number, found)
    assert ours.schema(guid) == found


def test_register_as_confluents_client_does(broker: Broker) -> None:
    ours = _client(broker.registry_url)
    number = ours.register("r", "AVRO", '"string"')
    assert ours.register("r", "AVRO", '"string"') == number
    with pytest.raises(SchemaRefusedError, match="incompatible"):
        ours.register("r", "AVRO", '"int"')
    with registry_client(broker.registry_url) as theirs:
        assert theirs.get_schema(number).schema_str == '"string"'


def test_an_id_is_asked_for_once_and_the_latest_each_time() -> None:
    asked: list[str] = []

    def answer(request: Asked) -> tuple[int, Any]:
        asked.append(request.path)
        return 200, ONE

    with answering(answer) as url:
        client = _client(url)
        for _ in range(3):
            client.schema(8)
            client.latest("s")
        client.schema(7)
    assert asked == ["/schemas/ids/8", *["/subjects/s/versions/latest"] * 3]


def test_the_next_url_is_asked_if_one_does_not_answer() -> None:
    with answering(lambda _: (200, ONE)) as url:
        assert _client("http://127.0.0.1:1", url).schema(1).text == '"int"'
    with pytest.raises(RequestFailedError, match=r"127.0.0.1:1: .*refused"):
        _client("http://127.0.0.1:1").schema(1)


@pytest.mark.parametrize(
    ("status", "body", "kind", "reason"),
    [
        (
            404,
            {"error_code": 40403, "message": "Schema not found"},
            SchemaNotFoundError,
            r"Schema not found \(error 40403",
        ),
        (409, {"error_code": 409, "message": "no"}, SchemaRefusedError, "HTTP 409: no"),
        (500, b"oops", RequestFailedError, "HTTP 500: oops"),
        (302, b"", RequestFailedError, "HTTP 302"),
        (200, b"[]", RequestFailedError, "not a JSON object"),
        (200, b"{", RequestFailedError, "not a JSON object"),
        (200, {}, RequestFailedError, "no valid schema"),
        (200, {"schema": '"int"', "references": [{"name": 1}]}, RequestFailedError, "no valid schema"),
    ],
)
def test_an_answer_that_is_no_schema_is_an_error(status: int, body: Any, kind: type[Exception], reason: str) -> None:
    with answering(lambda _: (status, body)) as url, pytest.raises(kind, match=reason):
        _client(url).schema(1)


def test_credentials_are_sent_and_files_are_read_again(tmp_path: Path) -> None:
    seen: list[str | None] = []

    def answer(request: Asked) -> tuple[int, Any]:
        seen.append(request.authorization)
        return 401, {"error_code": 401, "message": "no"}

    user, token = tmp_path / "user", tmp_path / "token"
    user.write_text("me:it\n")
    token.write_text("first")
    with answering(answer) as url:
        for more in (
            {"user_info": "me:it"},
            {"user_info_file": str(user)},
            {"bearer_token": "xyz"},
            {"bearer_token_file": str(token)},
            {},
        ):
            with pytest.raises(RequestFailedError) as error:
                _client(url, **more).schema(1)
            assert "me:it" not in str(error.value)
    assert seen == ["Basic bWU6aXQ=", "Basic bWU6aXQ=", "Bearer xyz", "Bearer first", None]


def test_tls_with_an_authority_of_its_own_and_a_clients_certificate(tmp_path: Path) -> None:
    pem = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.load_verify_locations(pem)
    context.verify_mode = ssl.CERT_REQUIRED
    with answering(lambda _: (200, ONE), context) as url:
        known = _client(url, ca_location=pem, certificate_location=pem)
        assert known.schema(1).text == '"int"'
        with pytest.raises(RequestFailedError, match="certificate"):
            _client(url, certificate_location=pem).schema(1)
    with pytest.raises(RequestFailedError, match="certificates cannot be loaded"):
        _client("https://127.0.0.1:1", ca_location=str(tmp_path / "none")).schema(1)


def _certificate(directory: Path) -> str:
    key, certificate, both = directory / "key.pem", directory / "certificate.pem", directory / "both.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        ["openssl", *command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return str(both)
