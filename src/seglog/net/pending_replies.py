"""Responses that come later, while the connection handles the client's next requests.

Kafka handles one request of a connection at a time, so a producer with acks=all waits for the followers once per
request. Here the next request is appended meanwhile. Responses still go out in the order of the requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")
MAX_PENDING: Final = 64
"""The most pending responses of a connection. At the limit it stops reading until half of them are out."""


class Caught:
    """``with Caught(then)``: an `Exception` of the block goes to ``then`` and no further."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[Exception], None]) -> None:
        self._then = then

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._then(error)
        return True


class PendingReply(Generic[T]):
    """A response that no longer needs its request or frame, or the error that takes its place. It can be awaited,
    too."""

    __slots__ = ("_then", "error", "is_known", "value")

    def __init__(self) -> None:
        self.is_known = False
        """Whether there is a value, or an error."""
        self.value: T
        self.error: Exception | None = None
        self._then: list[Callable[[], object]] = []

    def set(self, value: T) -> None:
        """Set the response, once."""
        self.value = value
        self._known()

    def fail(self, error: Exception) -> None:
        """There will be no response: the connection ends."""
        self.error = error
        self._known()

    def or_fails(self) -> Caught:
        """``with reply.or_fails()``: the block sets the response, or the exception that it raises is the `error`."""
        return Caught(self.fail)

    def _known(self) -> None:
        self.is_known = True
        for then in self._then:
            then()
        self._then.clear()

    def when_known(self, then: Callable[[], object]) -> None:
        """Call ``then`` when the response is set, or now if it is."""
        if self.is_known:
            then()
        else:
            self._then.append(then)

    def map(self, change: Callable[[T], U]) -> PendingReply[U]:
        changed: PendingReply[U] = PendingReply()

        def then() -> None:
            with changed.or_fails():
                changed.set(change(self._result()))

        self.when_known(then)
        return changed

    async def settled(self) -> None:
        """Wait for the response, or the error."""
        if not self.is_known:
            known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_known(lambda: _wake(known))
            await known

    def _result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value

    def __await__(self) -> Generator[object, None, T]:
        yield from self.settled().__await__()
        return self._result()


class ReplyQueue:
    """The responses of a connection from the first pending one on, in the order of their requests: ``replies``."""

    __slots__ = ("_fail", "_few", "_few_enough", "_send", "replies")

    def __init__(self, send: Callable[[list[bytes]], None], fail: Callable[[Exception], None]) -> None:
        """``send`` gets the responses that may go out, ``fail`` the error of the first that has none; the responses
        after it do not go out."""
        self.replies: deque[PendingReply[bytes | None]] = deque()
        self._send = send
        self._fail = fail
        self._few = 1
        self._few_enough: asyncio.Future[None] | None = None

    def add(self, answer: PendingReply[bytes | None]) -> None:
        self.replies.append(answer)
        answer.when_known(self._one_is_known)

    def add_known(self, answer: bytes) -> None:
        """Queue a finished response after the pending ones."""
        known: PendingReply[bytes | None] = PendingReply()
        known.set(answer)
        self.replies.append(known)

    def _one_is_known(self) -> None:
        ready: list[bytes] = []
        answers = self.replies
        failure = None
        while answers and answers[0].is_known and failure is None:
            answer = answers.popleft()
            failure = answer.error
            if failure is None and answer.value is not None:
                ready.append(answer.value)
        if ready:
            self._send(ready)
        if failure is not None:
            self._fail(failure)
            return
        if len(answers) < self._few and self._few_enough is not None:
            _wake(self._few_enough)

    async def fewer_than(self, count: int) -> None:
        """Wait until fewer than ``count`` are left. One task may wait at a time."""
        while len(self.replies) >= count:
            self._few = count
            self._few_enough = asyncio.get_running_loop().create_future()
            await self._few_enough

    def drop(self) -> None:
        """Forget them: the connection has ended."""
        self.replies.clear()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # who waited may have gone
        waiting.set_result(None)
