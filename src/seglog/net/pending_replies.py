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


class PendingReply(Generic[T]):
    """A response that no longer needs its request or frame. It can be awaited, too."""

    __slots__ = ("_then", "is_known", "value")

    def __init__(self) -> None:
        self.is_known = False
        self.value: T
        self._then: list[Callable[[], object]] = []

    def set(self, value: T) -> None:
        """Set the response, once."""
        self.value = value
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
        self.when_known(lambda: changed.set(change(self.value)))
        return changed

    def __await__(self) -> Generator[object, None, T]:
        if not self.is_known:
            known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_known(lambda: _wake(known))
            yield from known
        return self.value


class ReplyQueue:
    """The responses of a connection from the first pending one on, in the order of their requests: ``replies``."""

    __slots__ = ("_few", "_few_enough", "_send", "replies")

    def __init__(self, send: Callable[[list[bytes]], None]) -> None:
        """``send`` gets the responses that may go out."""
        self.replies: deque[PendingReply[bytes | None]] = deque()
        self._send = send
        self._few = 1
        self._few_enough: asyncio.Future[None] | None = None

    def add(self, answer: PendingReply[bytes | None]) -> None:
        self.replies.append(answer)
        answer.when_known(self._one_is_known)

    def add_known(self, answer: bytes) -> None:
        """Queue a finished response behind the pending ones."""
        known: PendingReply[bytes | None] = PendingReply()
        known.set(answer)
        self.replies.append(known)

    def _one_is_known(self) -> None:
        ready: list[bytes] = []
        answers = self.replies
        while answers and answers[0].is_known:
            value = answers.popleft().value
            if value is not None:
                ready.append(value)
        if ready:
            self._send(ready)
        if len(answers) < self._few and self._few_enough is not None:
            _wake(self._few_enough)

    async def fewer_than(self, count: int) -> None:
        """Wait until fewer than ``count`` are left. One task may wait at a time."""
        while len(self.replies) >= count:
            self._few = count
            self._few_enough = asyncio.get_running_loop().create_future()
            await self._few_enough

    def drop(self) -> None:
        """Forget them: the client has disconnected."""
        self.replies.clear()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # who waited may have gone
        waiting.set_result(None)
