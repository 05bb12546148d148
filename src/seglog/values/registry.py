"""A client of a schema registry: Confluent's REST API, which Apicurio (``/apis/ccompat/v7``) and Karapace have too.

An id never changes its schema, so what was found is kept for the life of the process. `registry_of` gives all parts of
a process the same client.
"""

from __future__ import annotations

import json
import ssl
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from seglog.core.errors import RequestFailedError
from seglog.core.fs import OsFs
from seglog.values.schemas import AVRO, SchemaText
from seglog.values.value_options import RegistryConfig

_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_MAX_ANSWER: Final = 64 << 20
_MAX_REFERENCES: Final = 1000
_NOT_FOUND: Final = 404


class SchemaNotFoundError(RequestFailedError):
    """The registry does not have the subject, version or id."""


class SchemaRefusedError(RequestFailedError):
    """The registry refuses a schema, such as one that is incompatible with earlier ones."""


class RegisteredSchema(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    schema_id: int
    schema: SchemaText


class _Found(NamedTuple):
    """A schema as the API has it: with references by subject and version."""

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]


class Registry:
    """Answers are cached, except for the latest version of a subject. For any number of threads.

    Raises `SchemaNotFoundError`, and `RequestFailedError` if no URL answers or the answer is an error.
    """

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._schemas: dict[int | str, SchemaText] = {}
        self._versions: dict[tuple[str, int], _Found] = {}
        self._opener: urllib.request.OpenerDirector | None = None

    def schema(self, schema_id: int | str) -> SchemaText:
        """The schema of an id, or of a GUID, with what it refers to."""
        found = self._schemas.get(schema_id)
        if found is None:
            path = f"schemas/guids/{schema_id}" if isinstance(schema_id, str) else f"schemas/ids/{schema_id}"
            found = self._whole(_parsed(self._ask("GET", path)))
            self._schemas[schema_id] = found
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject, as it is now."""
        answer = self._ask("GET", f"subjects/{quote(subject, safe='')}/versions/latest")
        schema = self._whole(_parsed(answer))
        self._schemas[_number(answer, "id")] = schema
        return RegisteredSchema(subject, _number(answer, "version"), _number(answer, "id"), schema)

    def register(self, subject: str, kind: str, text: str, references: tuple[tuple[str, str, int], ...] = ()) -> int:
        """Register a schema, or find the same one; its id. ``references`` are names, subjects and versions.

        `SchemaRefusedError` says why the registry refuses it.
        """
        body: dict[str, Any] = {"schema": text}
        if kind != AVRO:
            body["schemaType"] = kind
        if references:
            body["references"] = [{"name": name, "subject": of, "version": version} for name, of, version in references]
        return _number(self._ask("POST", f"subjects/{quote(subject, safe='')}/versions", body), "id")

    def _whole(self, found: _Found) -> SchemaText:
        """A schema with the texts of all that it refers to, each after those that it needs."""
        texts: dict[str, str] = {}
        self._collect(found, texts, depth=0)
        return SchemaText(found.kind, found.text, tuple(texts.items()))

    def _collect(self, found: _Found, texts: dict[str, str], depth: int) -> None:
        for name, subject, version in found.references:
            if name in texts:
                continue
            if depth > _MAX_REFERENCES or len(texts) >= _MAX_REFERENCES:
                raise RequestFailedError(f"schema registry: more than {_MAX_REFERENCES} references")
            inner = self._version(subject, version)
            self._collect(inner, texts, depth + 1)
            texts.setdefault(name, inner.text)

    def _version(self, subject: str, version: int) -> _Found:
        found = self._versions.get((subject, version))
        if found is None:
            found = _parsed(self._ask("GET", f"subjects/{quote(subject, safe='')}/versions/{version}"))
            self._versions[subject, version] = found
        return found

    # Requests

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Ask the URLs in turn, until one answers."""
        failures = []
        for url in self._config.urls:
            try:
                return self._ask_at(url, method, path, body)
            except OSError as error:  # URLError, a broken connection, a time-out
                failures.append(f"{url}: {getattr(error, 'reason', None) or error}")
        raise RequestFailedError(f"schema registry: {'; '.join(failures)}")

    def _ask_at(self, url: str, method: str, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        request = urllib.request.Request(
            f"{url}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": f"{_TYPE}, application/json", "Content-Type": _TYPE, **self._authorization()},
            method=method,
        )
        try:
            with self._open().open(request, timeout=self._config.timeout) as answer:
                data = answer.read(_MAX_ANSWER + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(url, path, error.code, error.read(_MAX_ANSWER)) from None
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise RequestFailedError(f"schema registry {url}: {path}: the answer is not a JSON object")
        return parsed

    def _authorization(self) -> dict[str, str]:
        config = self._config
        user = config.user_info or _secret(config.user_info_file)
        if user is not None:
            return {"Authorization": f"Basic {b64encode(user.encode()).decode()}"}
        token = config.bearer_token or _secret(config.bearer_token_file)
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def _open(self) -> urllib.request.OpenerDirector:
        with self._lock:
            if self._opener is None:
                self._opener = urllib.request.build_opener(
                    urllib.request.HTTPSHandler(context=self._context()), _NoRedirect()
                )
            return self._opener

    def _context(self) -> ssl.SSLContext:
        config = self._config
        try:
            context = ssl.create_default_context(cafile=config.ca_location)
            if config.certificate_location is not None:
                context.load_cert_chain(config.certificate_location, config.key_location)
        except (OSError, ssl.SSLError) as error:
            raise RequestFailedError(f"schema registry: certificates cannot be loaded: {error}") from error
        return context


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the credentials to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@lru_cache(maxsize=16)
def registry_of(config: RegistryConfig) -> Registry:
    """The client of this process."""
    return Registry(config)


def _secret(path: str | None) -> str | None:
    """The text of a file without its last newline."""
    return None if path is None else OsFs().read(path).decode().rstrip("\r\n")


def _refusal(url: str, path: str, status: int, data: bytes) -> RequestFailedError:
    try:
        answer = json.loads(data)
        text = f"{answer['message']} (error {answer['error_code']})"
    except (ValueError, KeyError, TypeError, RecursionError):
        text = data[:200].decode(errors="replace").strip()
    kind = RequestFailedError
    if status == _NOT_FOUND:
        kind = SchemaNotFoundError
    elif status in (409, 422):
        kind = SchemaRefusedError
    return kind(f"schema registry {url}: {path}: HTTP {status}{f': {text}' if text else ''}")


def _parsed(answer: Mapping[str, Any]) -> _Found:
    text, kind = answer.get("schema"), answer.get("schemaType", AVRO)
    references = answer.get("references") or ()
    try:
        return _Found(
            str(kind),
            _text(text),
            tuple((str(one["name"]), str(one["subject"]), int(one["version"])) for one in references),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RequestFailedError(f"schema registry: the answer has no valid schema: {error!r}") from error


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError("schema is not a text")
    return text


def _number(answer: Mapping[str, Any], name: str) -> int:
    number = answer.get(name)
    if not isinstance(number, int):
        raise RequestFailedError(f"schema registry: the answer has no {name}")
    return number
