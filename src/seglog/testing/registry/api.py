"""Requests of Confluent's REST API, and their answers as JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote

from seglog.core.errors import SeglogError
from seglog.testing.registry.state import (
    KINDS,
    Change,
    RegistryError,
    RegistryState,
    Schema,
    Version,
    invalid,
    not_found,
    schema_json,
)


class Answer(NamedTuple):
    status: HTTPStatus
    body: Any


class RegistryApi:
    """Answers one request at a time. ``write`` makes records durable before they count."""

    def __init__(self, state: RegistryState, write: Callable[[Sequence[Change]], None]) -> None:
        self._state = state
        self._write = write
        self._lock = threading.Lock()

    def answer(self, method: str, target: str, body: bytes) -> Answer:
        """The answer to a request; ``target`` has path and query."""
        path, _, query = target.partition("?")
        words = tuple(unquote(word) for word in path.strip("/").split("/"))
        asked = _Request(method, words, {name: values[-1] for name, values in parse_qs(query).items()}, body)
        try:
            with self._lock:
                return Answer(HTTPStatus.OK, self._route(asked))
        except RegistryError as error:
            return Answer(error.status, {"error_code": error.code, "message": str(error)})
        except SeglogError as error:
            message = f"Error while forwarding the request to the store: {error}"
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error_code": 50001, "message": message})

    def _route(self, asked: _Request) -> Any:
        room = _ROOMS.get(asked.words[0])
        if asked.words == ("",):
            return {}
        if room is None:
            raise not_found(404, "HTTP 404 Not Found")
        return room(self, asked)

    def _carry_out(self, changes: Sequence[Change]) -> None:
        if changes:
            self._write(changes)
            for key, value in changes:
                self._state.apply(key, value)

    # Rooms: the first word of a path

    def _schemas(self, asked: _Request) -> Any:
        state = self._state
        match asked.method, *asked.words[1:]:
            case "GET", "types":
                return list(KINDS)
            case "GET", "ids", number:
                return schema_json(state.schema(_number(number)))
            case "GET", "ids", number, "schema":
                return _raw(state.schema(_number(number)).text)
            case "GET", "ids", number, "subjects":
                return sorted({one.subject for one in state.with_id(_number(number))})
            case "GET", "ids", number, "versions":
                found = state.with_id(_number(number))
                return [{"subject": one.subject, "version": one.number} for one in found]
            case "GET", "guids", guid:
                return schema_json(state.by_guid(guid)[1])
        raise _no_method(asked)

    def _subjects(self, asked: _Request) -> Any:
        state, deleted = self._state, asked.flag("deleted")
        match asked.method, *asked.words[1:]:
            case ("GET",):
                return state.subjects(deleted=deleted)
            case "POST", subject:
                return _version_json(state.lookup(subject, self._schema(asked, subject), deleted=deleted))
            case "DELETE", subject:
                numbers, changes = state.delete_subject(subject, permanent=asked.flag("permanent"))
                self._carry_out(changes)
                return numbers
            case "POST", subject, "versions":
                schema = self._schema(asked, subject)
                schema_id, changes = state.register(subject, schema)
                self._carry_out(changes)
                return {"id": schema_id, "guid": schema.guid, **schema_json(schema)}
            case "GET", subject, "versions":
                return [one.number for one in state.versions(subject, deleted=deleted)]
            case "GET", subject, "versions", version:
                return _version_json(state.version(subject, version, deleted=deleted))
            case "GET", subject, "versions", version, "schema":
                return _raw(state.version(subject, version, deleted=deleted).schema.text)
            case "GET", subject, "versions", version, "referencedby":
                return state.referenced_by(subject, state.version(subject, version).number)
            case "DELETE", subject, "versions", version:
                number, changes = state.delete_version(subject, version, permanent=asked.flag("permanent"))
                self._carry_out(changes)
                return number
        raise _no_method(asked)

    def _schema(self, asked: _Request, subject: str) -> Schema:
        normalize = asked.flag("normalize") or self._state.normalizes(subject)
        return self._state.parse(asked.json(), normalize=normalize)

    def _compatibility(self, asked: _Request) -> Any:
        match asked.method, *asked.words[1:]:
            case "POST", "subjects", subject, "versions", *rest if len(rest) < 2:
                misfits = self._state.misfits(subject, self._schema(asked, subject), *rest)
                found: dict[str, Any] = {"is_compatible": not misfits}
                return found | ({"messages": misfits} if asked.flag("verbose") else {})
        raise _no_method(asked)

    def _config(self, asked: _Request) -> Any:
        subject, default = asked.subject(), asked.flag("defaultToGlobal")
        if asked.method == "GET":
            found: dict[str, Any] = {"compatibilityLevel": self._state.level(subject, default=default)}
            return found | ({"normalize": True} if self._state.normalizes(subject) else {})
        if asked.method == "PUT":
            given = asked.json()
            level, normalize = given.get("compatibility"), given.get("normalize")
            changes = self._state.configure(
                subject,
                level=None if level is None else str(level).upper(),
                normalize=normalize if isinstance(normalize, bool) else None,
            )
            self._carry_out(changes)
            return {name: given[name] for name in ("compatibility", "normalize") if name in given}
        if asked.method == "DELETE":
            before = self._state.level(subject, default=False)
            self._carry_out(self._state.unset("CONFIG", subject))
            return {"compatibilityLevel": before}
        raise _no_method(asked)

    def _mode(self, asked: _Request) -> Any:
        subject, default = asked.subject(), asked.flag("defaultToGlobal")
        if asked.method == "GET":
            return {"mode": self._state.mode(subject, default=default)}
        if asked.method == "PUT":
            mode = str(asked.json().get("mode", "")).upper()
            self._carry_out(self._state.set_mode(subject, mode))
            return {"mode": mode}
        if asked.method == "DELETE":
            before = self._state.mode(subject, default=False)
            self._carry_out(self._state.unset("MODE", subject))
            return {"mode": before}
        raise _no_method(asked)


class _Request(NamedTuple):
    method: str
    words: tuple[str, ...]
    query: Mapping[str, str]
    body: bytes

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def json(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RegistryError(HTTPStatus.BAD_REQUEST, 400, "the body is not a JSON object")
        return found

    def subject(self) -> str | None:
        """The subject in the path of /config and /mode; None for all."""
        if len(self.words) > 2:
            raise not_found(404, "HTTP 404 Not Found")
        return self.words[1] if len(self.words) == 2 else None


_ROOMS: Final[Mapping[str, Callable[[RegistryApi, _Request], Any]]] = {
    "schemas": RegistryApi._schemas,
    "subjects": RegistryApi._subjects,
    "compatibility": RegistryApi._compatibility,
    "config": RegistryApi._config,
    "mode": RegistryApi._mode,
}


def _no_method(asked: _Request) -> RegistryError:
    return RegistryError(HTTPStatus.METHOD_NOT_ALLOWED, 405, f"HTTP 405: {asked.method} /{'/'.join(asked.words)}")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise invalid(42202, f"{text} is not the id of a schema")
    return int(text)


def _raw(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # Protobuf
        return text


def _version_json(one: Version) -> dict[str, Any]:
    found = {"subject": one.subject, "version": one.number, "id": one.schema_id, "guid": one.schema.guid}
    return found | schema_json(one.schema)
