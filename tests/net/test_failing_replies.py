"""A request whose response fails, among others: each gets its own whole response, or the connection ends.

Clients match responses to requests by their order. So the bytes that a client gets must be those of the responses in
the order of their requests, up to the one that failed, and then the end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import cycle, product
from typing import Final, NamedTuple

import pytest

from seglog.core.errors import InvalidRequestError, LogClosedError
from seglog.net.connection import SLICE_BYTES, Reply
from seglog.net.pending_replies import PendingReply
from tests.cases import case
from tests.net.serving import Run, frame, serving

_SIZE: Final = 2 * SLICE_BYTES + 17
"""Of a response with a file slice: the broker reads it in three steps."""

FAILURES: Final[tuple[BaseException, ...]] = (
    InvalidRequestError("the request contradicts itself"),
    LogClosedError("the log is closed"),
    OSError(errno.EIO, "the disk fails"),
    OSError(errno.EMFILE, "no descriptors"),
    ZeroDivisionError("a bug"),
    asyncio.CancelledError("its task is cancelled"),
    MemoryError("no memory"),
)


class FailingSlice(NamedTuple):
    """A part of a file that cannot be read from ``good`` on: it raises, or without a failure is truncated."""

    size: int
    good: int
    failure: BaseException | None

    def read_part(self, start: int, size: int) -> bytes:
        left = self.good - start
        if left <= 0 and self.failure is not None:
            raise self.failure
        return b"s" * max(min(left, size), 0)


def parts(slice_: FailingSlice) -> Reply:
    return [slice_.size.to_bytes(4, "big"), slice_]


async def after_a_turn(reply: Callable[[], Reply]) -> Reply:
    await asyncio.sleep(0)
    return reply()


def later(settle: Callable[[PendingReply[bytes | None]], None]) -> PendingReply[bytes | None]:
    reply: PendingReply[bytes | None] = PendingReply()
    asyncio.get_running_loop().call_later(0.001, settle, reply)
    return reply


def raised(failure: BaseException) -> Reply:
    raise failure


Answer = Callable[[], Reply | Awaitable[Reply]]


def failing(failure: BaseException) -> dict[str, Answer]:
    """Ways in which a response fails."""
    ways: dict[str, Answer] = {
        "while the handler runs": partial(raised, failure),
        "while the response waits": lambda: after_a_turn(partial(raised, failure)),
        "no byte of a file": lambda: parts(FailingSlice(_SIZE, 0, failure)),
        "in the middle of a file": lambda: parts(FailingSlice(_SIZE, SLICE_BYTES, failure)),
        "no byte of a file, after a wait": lambda: after_a_turn(lambda: parts(FailingSlice(_SIZE, 0, failure))),
        "in the middle of a file, after a wait": lambda: after_a_turn(
            lambda: parts(FailingSlice(_SIZE, SLICE_BYTES, failure))
        ),
        "the end of a file": lambda: parts(FailingSlice(_SIZE, _SIZE - 1, failure)),
    }
    if isinstance(failure, Exception):
        ways["a pending response"] = lambda: later(lambda reply: reply.fail(failure))
        ways["the encoder of a pending response"] = lambda: later(lambda reply: reply.set(b"")).map(
            partial(_encode, failure)
        )
        ways["a pending response that has failed"] = lambda: _failed(failure)
    if isinstance(failure, asyncio.CancelledError):
        del ways["while the handler runs"]  # nothing cancels the loop's own callbacks
        for name in [name for name in ways if "file" in name]:
            del ways[name]
    return ways


def _encode(failure: Exception, _: object) -> bytes:
    raise failure


def _failed(failure: Exception) -> PendingReply[bytes | None]:
    reply: PendingReply[bytes | None] = PendingReply()
    reply.fail(failure)
    return reply


def truncated() -> dict[str, Answer]:
    return {
        f"a file of {good} bytes": partial(parts, FailingSlice(_SIZE, good, None))
        for good in (0, 1, SLICE_BYTES, _SIZE - 1)
    }


def whole(number: int) -> dict[str, Answer]:
    """Responses that succeed, of each kind."""
    reply = frame(b"response %d" % number)
    return {
        "at once": lambda: reply,
        "a file": lambda: [reply[:4], FailingSlice(len(reply) - 4, 1 << 30, None)],
        "after a wait": lambda: after_a_turn(lambda: reply),
        "pending": lambda: later(lambda pending: pending.set(reply)),
        "acks=0": lambda: None,
        "acks=0, after a wait": lambda: after_a_turn(lambda: None),
    }


_EXPECTED: Final = {"acks=0": b"", "acks=0, after a wait": b"", "a file": frame(b"s" * len(b"response 0"))}


@pytest.mark.parametrize("failure", [*FAILURES, None], ids=lambda failure: repr(failure)[:30])
def test_no_response_takes_the_place_of_one_that_failed(
    failure: BaseException | None, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")
    ways = truncated() if failure is None else failing(failure)

    async def check() -> None:
        afters = cycle(whole(2))
        for (way, fails), before in product(ways.items(), whole(0)):
            case()
            after = next(afters)
            answers = {0: whole(0)[before], 1: fails, 2: whole(2)[after]}
            got = await _received(answers)
            first = _EXPECTED.get(before, frame(b"response 0"))
            if isinstance(failure, asyncio.CancelledError) and not got:
                continue  # the connection's own task was cancelled, and with it the wait for earlier responses
            assert got.startswith(first), (before, way, after, got[:40])
            rest = got[len(first) :]
            assert (_SIZE.to_bytes(4, "big") + bytes(b"s" * (_SIZE - 1))).startswith(rest), (before, way, after)

    run(check)


async def _received(answers: dict[int, Answer]) -> bytes:
    """All bytes that the client gets before the end of the connection, if it sends all requests at once and another
    after each response."""
    async with serving(lambda body: answers[min(int(body), 2)]()) as served:
        reader, writer = await served.connect()
        writer.write(b"".join(frame(b"%4d" % number) for number in range(3)))
        got = b""
        while piece := await _some(reader):
            got += piece
            if not writer.is_closing():
                writer.write(frame(b"%4d" % 9))
        return got


async def _some(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(1 << 20), 60)
    except ConnectionError:
        return b""
