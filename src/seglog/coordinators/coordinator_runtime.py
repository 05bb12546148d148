"""The part of a coordinator that does not depend on what it coordinates (``CoordinatorRuntime``): which broker
coordinates a key, and the loading of its state.

A key, such as a group id, belongs to one partition of an internal topic. The broker that leads the partition
coordinates the key: it replays the partition, then appends its decisions there and answers clients when they are below
the high watermark. Everything runs on one event loop: nothing else runs between two awaits, so a decision and its
append are one step.

A context belongs to one partition in one epoch in which this broker leads it. `CoordinatorRuntime.moved` ends those
that are over and loads new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from seglog.coordinators.coordinator_context import CoordinatorContext
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.settings import java_hash
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import CorruptError, SeglogError, UnsupportedFormatError
from seglog.core.ground import Ground
from seglog.replication.replica import Replica

_log: Final = logging.getLogger("seglog.coordinators")
_NO_BROKER: Final = -1


class CoordinatorTopic(Protocol):
    """The internal topic that holds the records."""

    def partitions(self) -> Sequence[Replica | None]:
        """By number; None for one that is not here or cannot be served. Empty until the topic is made."""

    def leader(self, number: int) -> int:
        """The id of the broker that leads a partition, -1 if none does."""

    def is_awaited(self, number: int) -> bool:
        """Whether this broker is to lead a partition that it has no log of yet."""

    async def create(self) -> None:
        """Make the topic. Raises `SeglogError`."""


_SAY_SECONDS: Final = 60.0
C = TypeVar("C", bound=CoordinatorContext)


class CoordinatorRuntime(ABC, Generic[C]):
    """`run` loads contexts, calls `check` at its interval, and owns the coordinator's tasks."""

    def __init__(
        self, topic: CoordinatorTopic, what: str, *, partition_count: int, check_seconds: float, ground: Ground
    ) -> None:
        """``what`` its keys are called in errors. ``partition_count``: of the topic, before it is created."""
        self._topic = topic
        self._what = what
        self._partition_count = partition_count
        self._check_seconds = check_seconds
        self._clock = ground.clock
        self._contexts: dict[int, C] = {}
        self._creation: asyncio.Task[None] | None = None
        self._wants_loading = asyncio.Event()
        self._owner: asyncio.TaskGroup | None = None
        self._says_full_from = 0.0

    @abstractmethod
    def make_context(self, partition: Replica) -> C:
        """For a partition that this broker leads now."""

    @abstractmethod
    def replay(self, context: C) -> Iterator[None]:
        """Replay the partition in short steps, so that the event loop serves other tasks in between."""

    @abstractmethod
    def loaded(self, context: C) -> None:
        """Begin to serve the context: everything replayed is committed."""

    @abstractmethod
    def check(self) -> None:
        """Do what has fallen due."""

    # Loading

    async def run(self) -> None:
        """Load the contexts, then check at each interval, until cancelled."""
        next_check = self._clock.monotonic() + self._check_seconds
        try:
            async with asyncio.TaskGroup() as self._owner:
                while True:
                    await self._load_all()
                    wait = next_check - self._clock.monotonic()
                    if wait <= 0:
                        self.check()
                        next_check = self._clock.monotonic() + self._check_seconds
                        continue
                    # `wait_for` may swallow a cancellation that comes together with the event.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await self._wants_loading.wait()
        finally:
            self._owner = None
            for context in self._contexts.values():
                context.stop()
            self._contexts.clear()

    async def _load_all(self) -> None:
        self._wants_loading.clear()
        for number in range(len(self._topic.partitions())):
            context = self._context(number)
            if context is not None and not context.is_replayed and context.refusal is None:
                await self._load(context)

    async def _load(self, context: C) -> None:
        """Replay the partition. It serves requests when everything in it is committed; other partitions do not wait for
        that."""
        end = context.partition.log.log_end_offset
        try:
            for _ in self.replay(context):
                await asyncio.sleep(0)
                if not context.is_led:  # `_contexts` has another one by now, or none
                    return
        except (CorruptError, UnsupportedFormatError) as error:
            if context.is_led:  # else the log may have been truncated under its reader
                context.refuse(error)
            return
        except (SeglogError, OSError) as error:  # it was deleted or truncated meanwhile
            _log.error("%s cannot be loaded: %s", context.partition.topic_partition, error)
            return
        context.replayed()
        if context.partition.log.high_watermark >= end:
            self._begin(context)
        else:
            assert self._owner is not None
            self._owner.create_task(self._begin_later(context, end))

    async def _begin_later(self, context: C, end: int) -> None:
        if await context.committed(end):
            self._begin(context)

    def _begin(self, context: C) -> None:
        context.serve()
        self.loaded(context)

    def moved(self) -> None:
        """This broker leads other partitions of the topic, or some in another epoch: end the lost contexts and load the
        new ones."""
        for number in list(self._contexts):
            self._context(number)
        self._wants_loading.set()

    # The coordinator of a key

    def partition_of(self, key: str) -> int:
        return java_hash(key) % (len(self._topic.partitions()) or self._partition_count)

    async def locate(self, key: str) -> int:
        """Return the id of the key's coordinator, -1 if there is none. The first key creates the topic."""
        if self._owner is None:
            return _NO_BROKER
        if not self._topic.partitions():
            if self._creation is None or self._creation.done():
                self._creation = self._owner.create_task(self._create())
            await asyncio.shield(self._creation)  # others wait for it even if this request is cancelled
        return self._topic.leader(self.partition_of(key))

    async def _create(self) -> None:
        try:
            await self._topic.create()
        except SeglogError as error:
            _log.error("the topic of %ss could not be created: %s", self._what, error)

    def _context(self, number: int) -> C | None:
        """Return the context of a partition that this broker leads. End the one of an epoch that is over, whichever
        caller notices first."""
        partitions = self._topic.partitions()
        partition = partitions[number] if number < len(partitions) else None
        context = self._contexts.get(number)
        if context is not None and (context.partition is not partition or not context.is_led):
            del self._contexts[number]
            context.stop()
            context = None
        if context is None and partition is not None and partition.leads:
            context = self._contexts[number] = self.make_context(partition)
            if not context.is_loaded:
                self._wants_loading.set()
        return context

    def _context_of(self, key: str) -> C:
        """Raises `CoordinatorError` if this broker does not coordinate the key, or has not loaded it yet."""
        if self._owner is None:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not running")
        number = self.partition_of(key)
        context = self._context(number)
        if context is None and self._topic.is_awaited(number):
            raise CoordinatorError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"this broker will coordinate {self._what} {key}"
            )
        if context is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate {self._what} {key}")
        if context.refusal is not None:
            raise CoordinatorError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._what} {key} cannot be loaded: {context.refusal}"
            )
        if not context.is_loaded:
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._what} {key} is being loaded")
        return context

    def _check_room(self, key: str, count: int, most: int, setting: str) -> None:
        """Raises `CoordinatorError` if no other key may be added to ``count``. It is a retriable one, since unused keys
        expire."""
        if count < most:
            return
        reason = f"{self._what} {key} is refused: this broker has {count} already ({setting}={most})"
        now = self._clock.monotonic()
        if now >= self._says_full_from:
            self._says_full_from = now + _SAY_SECONDS
            _log.warning("%s", reason)
        raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)

    def _all_contexts(self) -> Iterator[C]:
        """All contexts of this broker that can be loaded. Raises `CoordinatorError` if one is not loaded yet."""
        for number in range(len(self._topic.partitions())):
            context = self._context(number)
            if context is not None and context.refusal is None:
                if not context.is_loaded:
                    raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._what}s are being loaded")
                yield context
