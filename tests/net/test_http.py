"""The little HTTP that there is, over real sockets, by a stock client and by hand."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from seglog.net.http import HttpListener, Page, Pages

_LARGE = b"x" * (4 << 20)
_PAGES: Pages = {
    "/a": lambda: Page(b"A\n"),
    "/large": lambda: Page(_LARGE),
    "/bad": lambda: Page(b"{}", "application/json", 503),
}


@asynccontextmanager
async def serving(pages: Pages = _PAGES, *, seconds: float = 10) -> AsyncIterator[HttpListener]:
    listener = HttpListener("127.0.0.1", 0, pages, seconds=seconds)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


async def exchange(listener: HttpListener, data: bytes) -> bytes:
    """All bytes that arrive before the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/a", (200, b"A\n", "text/plain; charset=utf-8")),
        ("GET", "/a?x=1", (200, b"A\n", "text/plain; charset=utf-8")),
        ("GET", "/large", (200, _LARGE, "text/plain; charset=utf-8")),
        ("GET", "/bad", (503, b"{}", "application/json")),
        ("HEAD", "/a", (200, b"", "text/plain; charset=utf-8")),
        ("GET", "/none", (404, b"404 Not Found\n", "text/plain; charset=utf-8")),
        ("POST", "/a", (405, b"405 Method Not Allowed\n", "text/plain; charset=utf-8")),
    ],
)
def test_by_a_stock_client(method: str, path: str, expected: tuple[int, bytes, str]) -> None:
    def ask(port: int) -> tuple[int, bytes, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path)
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.getheader("Content-Type")
        connection.close()
        return found

    async def main() -> None:
        async with serving() as listener:
            assert await asyncio.to_thread(ask, listener.port) == expected

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /a\r\n\r\n", b"400"),
        (b"\0\0\0\x12\0\x12\0\4\r\n\r\n", b"400"),
        (b"GET /a HTTP/1.1\r\n" + b"a: b\r\n" * 2000, b"431"),
        (b"G" * 9000, b"431"),
        (b"GET /a HTTP/1.0\r\n\r\nGET /large HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /\xff\xff HTTP/1.1\r\n\r\n", b"404"),
    ],
)
def test_malformed_request_gets_one_error_response(data: bytes, status: bytes) -> None:
    async def main() -> None:
        async with serving() as listener:
            answer = await exchange(listener, data)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert answer.count(b"HTTP/1.1 ") == 1

    asyncio.run(main())


def test_a_request_may_come_in_pieces() -> None:
    async def main() -> None:
        async with serving() as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            for byte in b"GET /a HTTP/1.1\r\n\r\n":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await reader.read()).endswith(b"\r\n\r\nA\n")
            writer.close()

    asyncio.run(main())


def test_slow_sender_or_reader_is_disconnected() -> None:
    async def main() -> None:
        async with serving(seconds=0.05) as listener:
            assert await exchange(listener, b"GET /a HTT") == b""
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1)
            writer.write(b"GET /large HTTP/1.1\r\n\r\n")
            while not listener.connections:
                await asyncio.sleep(0)
            while listener.connections:
                await asyncio.sleep(0.01)
            writer.close()

    asyncio.run(main())


def test_there_are_not_too_many_connections() -> None:
    async def main() -> None:
        async with serving() as listener:
            idle = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(32)]
            assert (await exchange(listener, b"")).startswith(b"HTTP/1.1 503")
            idle[0][1].close()
            while len(listener.connections) == 32:
                await asyncio.sleep(0)
            assert (await exchange(listener, b"GET /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
            for _, writer in idle:
                writer.close()

    asyncio.run(main())


def test_a_page_that_fails_later_is_answered_and_logged() -> None:
    async def main() -> None:
        logged: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

        async def broken() -> Page:
            await asyncio.sleep(0)
            raise ZeroDivisionError

        async with serving({"/a": broken}) as listener:
            assert (await exchange(listener, b"GET /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 500")
        assert [type(one["exception"]) for one in logged] == [ZeroDivisionError]

    asyncio.run(main())


def test_a_page_that_takes_its_time_lets_others_have_theirs() -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        ended: list[str] = []

        async def slow() -> Page:
            try:
                await go_on.wait()
            finally:
                ended.append("slow")
            return Page(b"slow\n")

        async with serving({"/a": lambda: Page(b"A\n"), "/slow": slow}) as listener:
            request = b"GET /slow HTTP/1.1\r\n\r\n"
            first = asyncio.create_task(exchange(listener, request))
            while not listener.making:
                await asyncio.sleep(0)
            assert (await exchange(listener, b"GET /a HTTP/1.1\r\n\r\n")).endswith(b"A\n")
            assert not first.done()
            go_on.set()
            assert (await first).endswith(b"\r\n\r\nslow\n")
            go_on.clear()
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(request)
            while not listener.making:
                await asyncio.sleep(0)
            writer.close()  # nobody wants it any more
            while listener.making:
                await asyncio.sleep(0)
            assert ended == ["slow", "slow"]
            last = asyncio.create_task(exchange(listener, request))
            while not listener.making:
                await asyncio.sleep(0)
        assert await last == b""

    asyncio.run(main())
