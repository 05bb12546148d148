"""The control of a broker for tests over HTTP, for programs in other languages.

A web page in a browser on this machine could send requests, too. So each request needs the token, and a request from a
foreign origin, or for a foreign host name (DNS rebinding), is refused before anything else is read of it.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol, get_args

from seglog.core.errors import SeglogError
from seglog.faults.fault import FIELD_TYPES, MAY_BE_NULL, Effect, Ending, Fault, FaultError
from seglog.net.http import HttpRequest, Page

__all__ = ["MAX_BODY", "OPERATIONS", "ControlPages", "openapi"]

MAX_BODY: Final = 8 << 20
"""Some tens of thousands of small records."""
_JSON: Final = "application/json"
_FAULT_ID: Final = "/v1/faults/"


class Act(Protocol):
    def __call__(self, verb: str, argument: Mapping[str, Any], /) -> Awaitable[Any]:
        """Do what a request asks for. `SeglogError` or OSError if that cannot be."""


class _Operation(NamedTuple):
    """``body`` are the fields of the request's JSON object with their JSON types; a type that ends in ? is optional."""

    verb: str
    summary: str
    body: Mapping[str, str] = {}
    answer: str | None = None
    """The name of the field of the answer that has the result; None for the result itself."""


OPERATIONS: Final[Mapping[tuple[str, str], _Operation]] = {
    ("GET", "/v1/faults"): _Operation("reports", "All faults, and how often each was met.", answer="faults"),
    ("POST", "/v1/faults"): _Operation(
        "inject", "Arm faults; in_order makes them a script.", {"faults": "array", "in_order": "boolean?"}, "ids"
    ),
    ("DELETE", "/v1/faults"): _Operation("clear", "Remove all faults."),
    ("GET", "/v1/faults/{id}"): _Operation("report", "One fault, and how often it was met."),
    ("DELETE", "/v1/faults/{id}"): _Operation("remove", "Remove one fault."),
    ("GET", "/v1/clock"): _Operation("clock", "The broker's time, and how far it is ahead of the machine's."),
    ("POST", "/v1/clock/advance"): _Operation("advance", "Move the broker's clock.", {"seconds": "number"}),
    ("POST", "/v1/topics"): _Operation(
        "create_topic",
        "Create a topic with its records.",
        {
            "name": "string",
            "partitions": "integer?",
            "replication": "integer?",
            "records": "array?",
            "config": "object?",
        },
    ),
    ("POST", "/v1/reset"): _Operation(
        "reset", "Delete all topics, groups and faults, and create these topics.", {"topics": "object?"}
    ),
    ("POST", "/v1/recording"): _Operation(
        "record", "Write all requests and answers to a file from now on.", {"path": "string"}
    ),
    ("DELETE", "/v1/recording"): _Operation("stop_recording", "End the recording."),
    ("POST", "/v1/replay"): _Operation(
        "replay",
        "Replay a recording to this broker, and report the responses that differ.",
        {"path": "string"},
        "differences",
    ),
    ("GET", "/v1/broker"): _Operation("status", "Whether the broker runs, where, and the id of its process."),
    ("POST", "/v1/stop"): _Operation("stop", "Stop the broker cleanly; its port stays reserved."),
    ("POST", "/v1/start"): _Operation("start", "Start the broker again on the same port and data."),
    ("POST", "/v1/restart"): _Operation("restart", "Stop it cleanly and start it again."),
    ("POST", "/v1/kill"): _Operation("kill", "End the process as with SIGKILL. There is no response."),
}


class ControlPages:
    """An `HttpHandler`. Call `listens_on` when its port is known."""

    def __init__(self, act: Act, token: str) -> None:
        self._act = act
        self._token = token
        self._hosts: frozenset[str] = frozenset()

    def listens_on(self, port: int) -> None:
        self._hosts = frozenset(f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]"))

    async def __call__(self, request: HttpRequest) -> Page:
        refused = self._refusal(request)
        if refused is not None:
            return refused
        if (request.method, request.path) == ("GET", "/openapi.json"):
            return _page(openapi())
        path, argument = request.path, {}
        if path.startswith(_FAULT_ID):
            path, argument = f"{_FAULT_ID}{{id}}", {"id": path.removeprefix(_FAULT_ID)}
        operation = OPERATIONS.get((request.method, path))
        if operation is None:
            is_known = any(path == known for _, known in OPERATIONS)
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED if is_known else HTTPStatus.NOT_FOUND, "no such operation")
        try:
            if operation.body or request.body:
                argument = {**argument, **_document(request, operation.body)}
            found = await self._act(operation.verb, argument)
        except _UnsupportedError as error:
            return _problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, str(error))
        except (SeglogError, OSError) as error:
            return _problem(HTTPStatus.BAD_REQUEST, f"{type(error).__name__}: {error}")
        return _page(found if operation.answer is None and found is not None else _named(operation, found))

    def _refusal(self, request: HttpRequest) -> Page | None:
        headers = request.headers
        if headers.get("host", "") not in self._hosts:
            return _problem(HTTPStatus.FORBIDDEN, "the request names another host")
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self._hosts:
            return _problem(HTTPStatus.FORBIDDEN, "the request comes from a foreign origin")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self._token.encode()):
            return _problem(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
        return None


class _UnsupportedError(Exception):
    pass


def _document(request: HttpRequest, fields: Mapping[str, str]) -> dict[str, Any]:
    """The JSON object of a request. `FaultError` if it does not have exactly these fields."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise _UnsupportedError(f"the body must be {_JSON}")
    try:
        found = json.loads(request.body or b"{}")
    except (ValueError, RecursionError) as error:
        raise FaultError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FaultError("the body is not an object")
    for name in found:
        if name not in fields:
            raise FaultError(f"there is no field {name!r}; there are {', '.join(fields) or 'none'}")
    for name, kind in fields.items():
        if name not in found and not kind.endswith("?"):
            raise FaultError(f"the field {name!r} is missing")
        if name in found and not _is_of_kind(found[name], kind.removesuffix("?")):
            raise FaultError(f"the field {name!r} must be of type {kind.removesuffix('?')}")
        if name == "path" and not os.path.isabs(found.get(name, "/")):
            raise FaultError(f"the path {found[name]!r} is not absolute")
    return found


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def _is_of_kind(value: object, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _named(operation: _Operation, found: Any) -> dict[str, Any]:
    return {} if operation.answer is None else {operation.answer: found}


def _page(document: Any, status: int = HTTPStatus.OK) -> Page:
    return Page(json.dumps(document).encode() + b"\n", _JSON, status)


def _problem(status: HTTPStatus, why: str) -> Page:
    return _page({"error": why}, status)


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 description of all operations."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        described: dict[str, Any] = {"operationId": operation.verb, "summary": operation.summary}
        if "{id}" in path:
            described["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}]
        if operation.body:
            described["requestBody"] = {"content": {_JSON: {"schema": _schema(operation.body)}}}
        described["responses"] = {
            "200": {"description": "done"},
            "400": {"description": "the operation failed; `error` has the reason"},
            "401": {"description": "the token is missing or wrong"},
            "403": {"description": "a foreign Host or Origin"},
        }
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Control of a seglog broker for tests", "version": "1"},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Fault": _fault_schema(), "Record": _RECORD, "Data": _DATA},
        },
    }


def _schema(fields: Mapping[str, str]) -> dict[str, Any]:
    properties = {name: _ITEMS.get(name, {"type": kind.removesuffix("?")}) for name, kind in fields.items()}
    required = [name for name, kind in fields.items() if not kind.endswith("?")]
    return _object(properties, required)


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    more = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(properties), **more, "additionalProperties": False}


def _one_of(*options: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": one} if isinstance(one, str) else one for one in options]}


_DATA: Final = _one_of("string", "null", _object({"base64": {"type": "string"}}, ["base64"]))
_A_DATA: Final = {"$ref": "#/components/schemas/Data"}
_RECORD: Final = _object(
    {
        "value": _A_DATA,
        "key": _A_DATA,
        "headers": {
            "type": "array",
            "items": {"type": "array", "prefixItems": [{"type": "string"}, _A_DATA], "minItems": 2, "maxItems": 2},
        },
        "timestamp": {"type": ["integer", "null"]},
        "partition": {"type": ["integer", "null"]},
    }
)
_RECORDS: Final = {"type": "array", "items": {"$ref": "#/components/schemas/Record"}}
_TOPIC: Final = _object(
    {
        "partitions": {"type": "integer"},
        "replication": {"type": "integer"},
        "records": _RECORDS,
        "config": {"type": "object"},
    }
)
_ITEMS: Final[Mapping[str, Any]] = {
    "faults": {"type": "array", "items": {"$ref": "#/components/schemas/Fault"}},
    "records": _RECORDS,
    "topics": {"type": "object", "additionalProperties": _TOPIC},
}
"""The fields whose type says more than its name."""
_JSON_TYPES: Final = {bool: "boolean", float: "number", int: "integer", str: "string"}
_CHOICES: Final = {"effect": get_args(Effect), "then": get_args(Ending)}


def _fault_schema() -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, types in FIELD_TYPES.items():
        kinds = ["number"] if float in types else [_JSON_TYPES[one] for one in types]
        kinds += ["null"] if name in MAY_BE_NULL else []
        properties[name] = {"type": kinds[0] if len(kinds) == 1 else kinds}
        if name in _CHOICES:
            properties[name]["enum"] = list(_CHOICES[name])
        if name != "effect":
            properties[name]["default"] = Fault.__dataclass_fields__[name].default
    return _object(properties, ["effect"])
