"""Changes of topics: off the event loop, since they fsync; one after the other; and then shown to the clients.

A topic that is to be deleted is hidden first, so that nobody meets it half gone, and one that is created or grown is
shown when it is whole.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from seglog.broker.codes import Code, RefusedError
from seglog.broker.topics import LocalTopics, Topic, Topics
from seglog.core.config import LogDirConfig
from seglog.core.descriptors import room_for_logs
from seglog.core.errors import SeglogError, TopicExistsError
from seglog.core.ground import Ground
from seglog.storage.formats.topics_file import TopicInfo

T = TypeVar("T")
_log: Final = logging.getLogger("seglog.broker")
MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""As in Kafka's ``ReplicationControlManager``."""
DEFAULT_SECONDS: Final = 30.0
"""How long a change may take, where a request does not say."""

Assignment = Sequence[Sequence[int]]
"""The brokers that have each partition's replicas, the preferred leader first."""


class TopicChanges(ABC):
    """The one place of a broker from which topics are changed. Errors of all: `SeglogError`."""

    def __init__(self, topics: Topics, ground: Ground) -> None:
        self._topics = topics
        self._lane = ground.workers.lane("seglog-topics")
        self._pending: set[asyncio.Task[object]] = set()
        self.deleted: Callable[[Topic], None] = lambda _: None
        """Is told of a topic when it is gone."""

    async def run(self, act: Callable[[], T], then: Callable[[T], object] = lambda _: None) -> T:
        """``act`` in the thread, ``then`` on the loop with its result, also if whoever asked for it has gone."""

        async def work() -> T:
            result = await self._lane.run(act)
            then(result)
            return result

        task = asyncio.get_running_loop().create_task(work())
        self._pending.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[T]) -> None:
        """Whoever asked for it may have gone: then nobody else looks at how it ended."""
        self._pending.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, SeglogError):
            _log.error("a change of topics has failed", exc_info=error)

    @abstractmethod
    def place(self, partitions: int, factor: int, *, first: int = 0) -> Assignment:
        """Where ``factor`` replicas of each of ``partitions`` new partitions are to be, numbered from ``first`` on.
        `InvalidReplicationFactorError`."""

    @abstractmethod
    async def create(self, name: str, assignment: Assignment, config: Mapping[str, str]) -> Topic:
        """A new topic with so many partitions. `TopicExistsError`."""

    async def ensure(self, name: str, partitions: int, config: Mapping[str, str], *, factor: int = 1) -> Topic:
        """The topic of that name, which is created if there is none, with ``factor`` replicas of each partition.

        `TopicExistsError` if it exists, and cannot be seen from here yet."""
        try:
            there = self._topics.by_name.get(name)
            return there or await self.create(name, self.place(partitions, factor), config)
        except TopicExistsError:  # two asked at the same time
            there = self._topics.by_name.get(name)
            if there is None:
                raise
            return there

    @abstractmethod
    async def settled(self, topics: Sequence[Topic], seconds: float) -> bool:
        """Wait until all partitions of these have leaders; False when the time is over."""

    @abstractmethod
    async def add_partitions(self, topic: Topic, assignment: Assignment) -> None:
        """More partitions; ``assignment`` is that of the new ones."""

    @abstractmethod
    async def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Give keys of a topic's own configuration other values, or with None none."""

    @abstractmethod
    async def reconfigure(self, config: LogDirConfig) -> None:
        """Take up other defaults for topics, and what else a broker's configuration says of its logs."""

    @abstractmethod
    async def delete(self, topic: Topic, seconds: float = DEFAULT_SECONDS) -> None:
        """Delete a topic; who waits for its records is told at once. ``seconds``: how long it may take until this
        broker no longer shows it."""

    async def close(self) -> None:
        """Wait for what has begun."""
        await asyncio.gather(*self._pending, return_exceptions=True)
        await self._lane.close()


class LocalChanges(TopicChanges):
    """Of a node that is alone: in its directory. The brokers of an assignment mean nothing here, only how many
    partitions it is of."""

    def __init__(self, topics: LocalTopics, ground: Ground) -> None:
        super().__init__(topics, ground)
        self._shown = topics
        self._directory = topics.directory

    def place(self, partitions: int, factor: int, *, first: int = 0) -> Assignment:
        del factor, first
        return [()] * partitions

    async def settled(self, topics: Sequence[Topic], seconds: float) -> bool:
        """They lead themselves."""
        del topics, seconds
        return True

    async def create(self, name: str, assignment: Assignment, config: Mapping[str, str]) -> Topic:
        """Errors of `LogDir.create_topic`; `RefusedError` where there are no file descriptors for so many logs."""

        def act() -> TopicInfo:
            _check_descriptors(len(assignment))
            return self._directory.create_topic(name, len(assignment), config)

        await self.run(act, self._shown.show)
        return self._topics.by_name[name]

    async def add_partitions(self, topic: Topic, assignment: Assignment) -> None:
        """Errors of `LogDir.add_partitions`; `RefusedError` where there are no file descriptors for so many logs."""

        count = len(topic.partitions) + len(assignment)

        def act() -> TopicInfo:
            _check_descriptors(len(assignment))
            try:
                return self._directory.add_partitions(topic.name, count)
            except ValueError as error:  # somebody else was faster
                raise RefusedError(Code.INVALID_PARTITIONS, str(error)) from error

        await self.run(act, self._shown.show)

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Errors of `LogDir.alter_config`."""
        await self.run(lambda: self._directory.alter_config(name, changes))

    async def reconfigure(self, config: LogDirConfig) -> None:
        await self.run(lambda: self._directory.reconfigure(config))

    async def delete(self, topic: Topic, seconds: float = DEFAULT_SECONDS) -> None:
        """Errors of `LogDir.delete_topic`."""
        del seconds
        self._topics.hide(topic.name)
        for partition in topic.partitions:
            if partition is not None:
                partition.wake()
        try:
            await self.run(lambda: self._directory.delete_topic(topic.name), lambda _: self.deleted(topic))
        except BaseException:
            self._shown.refresh(topic.name)
            raise


def _check_descriptors(partitions: int) -> None:
    room = room_for_logs()
    if partitions > room:
        message = f"{partitions} partitions need {partitions} open files: {room} are left for them (ulimit -n)"
        raise RefusedError(Code.POLICY_VIOLATION, message)
