"""The control of a broker for tests over HTTP, for programs in other languages.

A web page in a browser on this machine could send requests, too. So each request needs the token, and a request from a
foreign origin, or for a foreign host name (DNS rebinding), is refused before anything else is read of it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from seglog.core.errors import SeglogError
from seglog.faults.broker_control import BrokerControl
from seglog.faults.fault import Fault, FaultError
from seglog.net.http import HttpRequest, Page

__all__ = ["MAX_BODY", "ControlPages", "openapi"]

MAX_BODY: Final = 8 << 20
"""Some tens of thousands of small records."""
_JSON: Final = "application/json"
_FAULT_ID: Final = "/v1/faults/"


class _Operation(NamedTuple):
    """``body`` are the fields of the request's JSON object with their JSON types; a type that ends in ? is optional."""

    verb: str
    summary: str
    body: Mapping[str, str] | None = None
    answer: str | None = None
    """The name of the field of the answer that has the result; None for the result itself."""


_OPERATIONS: Final[Mapping[tuple[str, str], _Operation]] = {
    ("GET", "/v1/faults"): _Operation("reports", "All faults, and how often each was met.", answer="faults"),
    ("POST", "/v1/faults"): _Operation(
        "inject", "Arm faults; in_order makes them a script.", {"faults": "array", "in_order": "boolean?"}, "ids"
    ),
    ("DELETE", "/v1/faults"): _Operation("clear", "Remove all faults."),
    ("DELETE", "/v1/faults/{id}"): _Operation("remove", "Remove one fault."),
    ("GET", "/v1/clock"): _Operation("clock", "The broker's time, and how far it is ahead of the machine's."),
    ("POST", "/v1/clock/advance"): _Operation("advance", "Move the broker's clock.", {"seconds": "number"}),
    ("POST", "/v1/topics"): _Operation(
        "create_topic",
        "Create a topic with its records.",
        {"name": "string", "partitions": "integer?", "records": "array?", "config": "object?"},
    ),
    ("POST", "/v1/reset"): _Operation(
        "reset", "Delete all topics, groups and faults, and create these topics.", {"topics": "object?"}
    ),
}


class ControlPages:
    """An `HttpHandler`. Call `listens_on` when its port is known."""

    def __init__(self, control: BrokerControl, token: str) -> None:
        self._control = control
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
        operation = _OPERATIONS.get((request.method, path))
        if operation is None:
            is_known = any(path == known for _, known in _OPERATIONS)
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED if is_known else HTTPStatus.NOT_FOUND, "no such operation")
        try:
            if operation.body is not None:
                argument = _document(request, operation.body)
            found = await self._control.do(operation.verb, argument)
        except _UnsupportedError as error:
            return _problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, str(error))
        except SeglogError as error:
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
            raise FaultError(f"there is no field {name!r}; there are {', '.join(fields)}")
    for name, kind in fields.items():
        if name not in found and not kind.endswith("?"):
            raise FaultError(f"the field {name!r} is missing")
        if name in found and not _is_of_kind(found[name], kind.removesuffix("?")):
            raise FaultError(f"the field {name!r} is no {kind.removesuffix('?')}")
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
    for (method, path), operation in _OPERATIONS.items():
        described: dict[str, Any] = {"operationId": operation.verb, "summary": operation.summary}
        if "{id}" in path:
            described["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}]
        if operation.body is not None:
            described["requestBody"] = {"content": {_JSON: {"schema": _schema(operation.body)}}}
        described["responses"] = {
            "200": {"description": "done"},
            "400": {"description": "it cannot be done; `error` says why"},
            "401": {"description": "the token is missing or wrong"},
            "403": {"description": "a foreign Host or Origin"},
        }
        paths.setdefault(path, {})[method.lower()] = described
    fields = {name: {"description": _fault_field(name)} for name in Fault.__dataclass_fields__ if name != "where"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Control of a seglog broker for tests", "version": "1"},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Fault": {"type": "object", "required": ["effect"], "properties": fields}},
        },
    }


def _schema(fields: Mapping[str, str]) -> dict[str, Any]:
    properties: dict[str, Any] = {name: {"type": kind.removesuffix("?")} for name, kind in fields.items()}
    if "faults" in properties:
        properties["faults"]["items"] = {"$ref": "#/components/schemas/Fault"}
    required = [name for name, kind in fields.items() if not kind.endswith("?")]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _fault_field(name: str) -> str:
    default = Fault.__dataclass_fields__[name].default
    shown = "required" if name == "effect" else f"default {json.dumps(default)}"
    return f"`Fault.{name}` of seglog.testing; {shown}"
