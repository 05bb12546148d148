"""Just enough HTTP/1.1 for scrapes of metrics and health checks: GET and HEAD of a few pages, one request per
connection, small limits. No request changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, cast

__all__ = ["HttpListener", "Page", "Pages"]

_MAX_HEAD: Final = 8 << 10
_MAX_CONNECTIONS: Final = 32
_SECONDS: Final = 10.0
"""The time limit of a whole connection; Prometheus' scrape timeout is 10 s by default, too."""


class Page(NamedTuple):
    """The response for a path."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK


Pages = Mapping[str, Callable[[], Page | Awaitable[Page]]]
"""Pages by path. Each request makes its page anew on the event loop; a long page yields to others."""


class HttpListener:
    """Listens on ``host:port``; port 0 asks for a free one."""

    def __init__(self, host: str, port: int, pages: Pages, *, seconds: float = _SECONDS) -> None:
        self.host = host
        self.port = port
        self.pages = pages
        self.seconds = seconds
        self.connections: set[asyncio.Transport] = set()
        self.making: set[asyncio.Future[Page]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self.host, self.port, reuse_address=True)
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
        words = self._head[: self._head.index(b"\r\n")].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._answer(_error(HTTPStatus.BAD_REQUEST))
            return
        page = self._page(words[0], words[1])
        if isinstance(page, Page):
            self._answer(page, with_body=words[0] != b"HEAD")
        elif self._page_to_come is None:
            self._page_to_come = coming = asyncio.ensure_future(page)
            self._listener.making.add(coming)
            coming.add_done_callback(partial(self._made, with_body=words[0] != b"HEAD"))

    def _made(self, page: asyncio.Future[Page], *, with_body: bool) -> None:
        self._listener.making.discard(page)
        if not page.cancelled() and self._transport is not None:
            self._answer(page.result(), with_body=with_body)

    def _page(self, method: bytes, target: bytes) -> Page | Awaitable[Page]:
        if method not in (b"GET", b"HEAD"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        make = self._listener.pages.get(target.partition(b"?")[0].decode("latin-1"))
        return make() if make is not None else _error(HTTPStatus.NOT_FOUND)

    def _answer(self, page: Page, *, with_body: bool = True) -> None:
        assert self._transport is not None
        status = HTTPStatus(page.status)
        allow = "Allow: GET, HEAD\r\n" if status == HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {page.content_type}\r\n{allow}"
            f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (page.body if with_body else b""))
        self._transport.close()  # when that is sent, or the time is over


def _error(status: HTTPStatus) -> Page:
    return Page(f"{status.value} {status.phrase}\n".encode(), status=status)
