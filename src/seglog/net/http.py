"""Just enough HTTP/1.1 for scrapes of metrics, health checks, the console, and the control of brokers for tests: one
request per connection, small limits. Pages answer GET and HEAD, and change nothing. An `HttpHandler` gets all methods,
and bodies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

__all__ = ["HttpHandler", "HttpListener", "HttpRequest", "Page", "Pages"]

_MAX_HEAD: Final = 8 << 10
_MAX_CONNECTIONS: Final = 32
_MAX_DIGITS: Final = 12
_ONLY_ONCE: Final = frozenset({"host", "origin", "authorization", "content-length", "content-type"})
_SECONDS: Final = 10.0
"""The time limit of a whole connection; Prometheus' scrape timeout is 10 s by default, too."""


class Page(NamedTuple):
    """The response for a path."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK
    headers: Sequence[tuple[str, str]] = ()
    """More headers. Their values are ours, never a client's."""


Pages = Mapping[str, Callable[[], Page | Awaitable[Page]]]
"""Pages by path. Each request makes its page again on the event loop; a long page yields to others."""


class HttpRequest(NamedTuple):
    """``headers`` have names in lower case. ``path`` has no query; ``query`` is the text after its question mark."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    query: str = ""


HttpHandler = Callable[[HttpRequest], Page | Awaitable[Page]]


class HttpListener:
    """Listens on ``host:port``; port 0 asks for a free one."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Pages | HttpHandler,
        *,
        seconds: float = _SECONDS,
        max_body: int = 0,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """``max_body``: the most bytes of a request's body, for a handler; 0 ignores bodies. ``tls`` returns the
        context of the next handshake; None: without TLS."""
        self._tls = tls
        self.host = host
        self.port = port
        self.handler = _of_pages(pages) if isinstance(pages, Mapping) else pages
        self.seconds = seconds
        self.max_body = max_body
        self.connections: set[asyncio.Transport] = set()
        self.making: set[asyncio.Future[Page]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        secure: dict[str, Any] = {}
        if self._tls is not None:
            secure = {"ssl": _renewing(self._tls), "ssl_handshake_timeout": self.seconds, "ssl_shutdown_timeout": 1.0}
        self._server = await loop.create_server(
            lambda: _Connection(self), self.host, self.port, reuse_address=True, **secure
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Accept no more connections, and close all."""
        if self._server is None:
            return
        self._server.close()
        for page in list(self.making):
            page.cancel()
        await asyncio.gather(*self.making, return_exceptions=True)
        for transport in list(self.connections):
            transport.abort()
        await self._server.wait_closed()


def _renewing(current: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context that leaves each handshake to the current one."""
    context = current()

    def use_current(connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = current()

    context.sni_callback = use_current
    return context


class _Connection(asyncio.Protocol):
    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._page_to_come: asyncio.Future[Page] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by what they can do, not by their class
        self._transport = cast(asyncio.Transport, transport)
        connections = self._listener.connections
        if len(connections) >= _MAX_CONNECTIONS:
            self._answer(_error(HTTPStatus.SERVICE_UNAVAILABLE))
        connections.add(self._transport)
        self._deadline = asyncio.get_running_loop().call_later(self._listener.seconds, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._transport is not None:
            self._listener.connections.discard(self._transport)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._page_to_come is not None:
            self._page_to_come.cancel()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0 and len(self._head) < _MAX_HEAD:
            return
        if end < 0 or end > _MAX_HEAD:
            self._answer(_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
            return
        if self._page_to_come is not None:
            return
        try:
            request = _parsed(self._head, end, self._listener.max_body)
        except _BadRequestError as error:
            self._answer(_error(error.status))
            return
        if request is None:
            return
        page = self._listener.handler(request)
        with_body = request.method != "HEAD"
        if isinstance(page, Page):
            self._answer(page, with_body=with_body)
        else:
            self._page_to_come = coming = asyncio.ensure_future(page)
            self._listener.making.add(coming)
            coming.add_done_callback(partial(self._made, with_body=with_body))
            if self._listener.max_body and self._deadline is not None:
                self._deadline.cancel()  # a handler has limits of its own, and may move the clock

    def _made(self, page: asyncio.Future[Page], *, with_body: bool) -> None:
        self._listener.making.discard(page)
        if not page.cancelled() and self._transport is not None:
            if self._deadline is not None and self._deadline.cancelled():
                self._deadline = asyncio.get_running_loop().call_later(self._listener.seconds, self._transport.abort)
            error = page.exception()
            self._answer(_error(HTTPStatus.INTERNAL_SERVER_ERROR) if error else page.result(), with_body=with_body)
            if error is not None:
                raise error  # for the event loop's log

    def _answer(self, page: Page, *, with_body: bool = True) -> None:
        assert self._transport is not None
        status = HTTPStatus(page.status)
        more = _MORE_HEADERS.get(status, "") + "".join(f"{name}: {value}\r\n" for name, value in page.headers)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {page.content_type}\r\n{more}"
            f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (page.body if with_body else b""))
        self._transport.close()  # when that is sent, or the time is over


_MORE_HEADERS: Final[Mapping[int, str]] = {
    HTTPStatus.METHOD_NOT_ALLOWED: "Allow: GET, HEAD\r\n",
    HTTPStatus.UNAUTHORIZED: "WWW-Authenticate: Bearer\r\n",
}


class _BadRequestError(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status)
        self.status = status


def _parsed(data: bytes, end: int, max_body: int) -> HttpRequest | None:
    """The request whose head ends at ``end``; None while its body is not there."""
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _BadRequestError(HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or name != name.strip() or (name in headers and name in _ONLY_ONCE):
            raise _BadRequestError(HTTPStatus.BAD_REQUEST)
        headers[name] = value.strip()
    path, _, query = words[1].partition("?")
    if not max_body:
        return HttpRequest(words[0], path, headers, b"", query)
    size = headers.get("content-length", "0")
    if "transfer-encoding" in headers:
        raise _BadRequestError(HTTPStatus.LENGTH_REQUIRED)
    if not (size.isascii() and size.isdigit()):
        raise _BadRequestError(HTTPStatus.BAD_REQUEST)
    if len(size) > _MAX_DIGITS or int(size) > max_body:
        raise _BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    body = data[end + 4 :]
    if len(body) < int(size):
        return None
    return HttpRequest(words[0], path, headers, body[: int(size)], query)


def _of_pages(pages: Pages) -> HttpHandler:
    def handle(request: HttpRequest) -> Page | Awaitable[Page]:
        if request.method not in ("GET", "HEAD"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        make = pages.get(request.path)
        return make() if make is not None else _error(HTTPStatus.NOT_FOUND)

    return handle


def _error(status: HTTPStatus) -> Page:
    return Page(f"{status.value} {status.phrase}\n".encode(), status=status)
