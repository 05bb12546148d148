"""Answers that come later, while the next requests of the same client are handled already.

Kafka handles one request of a connection at a time: a producer with acks=all waits for its followers once for every
request. Here the next request is appended meanwhile; answers go out in the order of the requests all the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")
MAX_PENDING: Final = 64
"""Answers of one connection that may be outstanding; then it is not read from until half of them are out."""


class PendingReply(Generic[T]):
    """An answer that needs nothing of its request any more, not even the frame. It can be awaited, too."""

    __slots__ = ("_then", "is_known", "value")

    def __init__(self) -> None:
        self.is_known = False
        self.value: T
        self._then: list[Callable[[], object]] = []

    def set(self, value: T) -> None:
        """Here it is; once."""
        self.value = value
        self.is_known = True
        for then in self._then:
            then()
        self._then.clear()

    def when_known(self, then: Callable[[], object]) -> None:
        """Call ``then`` when it is there: now, if it is."""
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
    """The answers of one connection from the first on that is still to come, in the order of their requests."""

    __slots__ = ("_answers", "_few", "_few_enough", "_send")

    def __init__(self, send: Callable[[list[bytes]], None]) -> None:
        """``send`` gets what may go out."""
        self._answers: deque[PendingReply[bytes | None]] = deque()
        self._send = send
        self._few = 1
        self._few_enough: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answer: PendingReply[bytes | None]) -> None:
        self._answers.append(answer)
        answer.when_known(self._one_is_known)

    def add_known(self, answer: bytes) -> None:
        """One that is there already, and has to wait for those before it."""
        known: PendingReply[bytes | None] = PendingReply()
        known.set(answer)
        self._answers.append(known)

    def _one_is_known(self) -> None:
        ready: list[bytes] = []
        answers = self._answers
        while answers and answers[0].is_known:
            value = answers.popleft().value
            if value is not None:
                ready.append(value)
        if ready:
            self._send(ready)
        if len(answers) < self._few and self._few_enough is not None:
            _wake(self._few_enough)

    async def fewer_than(self, count: int) -> None:
        """Wait until so many are out that there are fewer left; one waits at a time."""
        while len(self._answers) >= count:
            self._few = count
            self._few_enough = asyncio.get_running_loop().create_future()
            await self._few_enough

    def drop(self) -> None:
        """The client has gone."""
        self._answers.clear()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # who waited may have gone
        waiting.set_result(None)
