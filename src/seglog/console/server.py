"""The HTTP of the console: the page's files, and the operations of the API in threads."""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from seglog.cli.options import OptionError
from seglog.cli.output import json_text
from seglog.console.access import SECURITY_HEADERS, Access
from seglog.console.api import OPERATIONS, ApiError, Console, Operation, openapi, values
from seglog.core.errors import (
    CorruptError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    RequestFailedError,
    SeglogError,
    UnknownPartitionError,
)
from seglog.core.fs import OsFs
from seglog.net.http import HttpRequest, Page

MAX_BODY: Final = 2 << 20
"""A record of a megabyte, as JSON."""
_THREADS: Final = 4
_JSON: Final = "application/json"
_STATIC: Final = os.path.join(os.path.dirname(__file__), "static")
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STATUSES: Final[Mapping[type[Exception], HTTPStatus]] = {
    OptionError: HTTPStatus.BAD_REQUEST,
    InvalidConfigError: HTTPStatus.BAD_REQUEST,
    UnknownPartitionError: HTTPStatus.NOT_FOUND,
    OffsetOutOfRangeError: HTTPStatus.NOT_FOUND,
    FileNotFoundError: HTTPStatus.NOT_FOUND,
    CorruptError: HTTPStatus.UNPROCESSABLE_ENTITY,
    RequestFailedError: HTTPStatus.BAD_GATEWAY,
}
_LOGIN: Final = "/"


def static_files() -> dict[str, Page]:
    """The page's files by path. They are read once, so no request names a file."""
    fs = OsFs()
    found = {}
    for name in fs.listdir(_STATIC):
        kind = _TYPES.get(os.path.splitext(name)[1])
        if kind is not None:
            found["/" if name == "index.html" else f"/{name}"] = Page(fs.read(os.path.join(_STATIC, name)), kind)
    return found


class ConsolePages:
    """An `HttpHandler`. Call `listens_on` when its port is known, and `close` at the end. ``told`` is called with the
    new token whenever one was spent."""

    def __init__(self, console: Console, access: Access, told: Callable[[], None]) -> None:
        self._console = console
        self._access = access
        self._told = told
        self._files = static_files()
        self._threads = ThreadPoolExecutor(_THREADS, "console")

    def listens_on(self, port: int, hosts: Collection[str]) -> None:
        self._access.listens_on(port, hosts)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def __call__(self, request: HttpRequest) -> Page:
        page = await self._page(request)
        return page._replace(headers=(*SECURITY_HEADERS, *page.headers))

    async def _page(self, request: HttpRequest) -> Page:
        refused = self._access.check_host(request.headers)
        if refused is not None:
            return _problem(*refused)
        token = parse_qs(request.query).get("token") if request.path == _LOGIN else None
        if token and request.method == "GET":
            cookie = self._access.spend(token[-1])
            if cookie is None:
                return _text(HTTPStatus.FORBIDDEN, "This address has opened a console already: use the newest one.")
            self._told()
            return Page(b"", status=HTTPStatus.SEE_OTHER, headers=(("Location", "/"), ("Set-Cookie", cookie)))
        operation = OPERATIONS.get((request.method, request.path))
        refused = self._access.refusal(request, changes=request.method not in ("GET", "HEAD"))
        if refused is not None:
            is_page = request.method in ("GET", "HEAD") and not request.path.startswith("/api/")
            return _text(*refused) if is_page else _problem(*refused)
        if request.method in ("GET", "HEAD") and request.path in self._files:
            return self._files[request.path]
        if (request.method, request.path) == ("GET", "/api/openapi.json"):
            return _document(openapi())
        if operation is None:
            is_known = any(request.path == path for _, path in OPERATIONS)
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED if is_known else HTTPStatus.NOT_FOUND, "no such operation")
        if operation.changes and not self._console.writes:
            return _problem(HTTPStatus.FORBIDDEN, "the console is read-only: start it with --write")
        if operation.changes and request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            return _problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be {_JSON}")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, operation, request)

    def _answer(self, operation: Operation, request: HttpRequest) -> Page:
        """In a thread."""
        try:
            return _document(operation.act(self._console, values(operation, request.query, request.body)))
        except ApiError as error:
            return _problem(error.status, str(error))
        except (SeglogError, OSError, ValueError) as error:
            status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), None)
            return _problem(status or HTTPStatus.INTERNAL_SERVER_ERROR, str(error))


def _document(document: Any) -> Page:
    return Page(json_text(document).encode(), _JSON)


def _problem(status: HTTPStatus, reason: str) -> Page:
    return _document({"error": reason})._replace(status=status)


def _text(status: HTTPStatus, reason: str) -> Page:
    return Page(f"{reason}\n".encode(), status=status)
