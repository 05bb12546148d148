"""Changes of topics: off the event loop, since they fsync; one after the other; and then shown to the clients.

A topic that is to be deleted is hidden first, so that nobody meets it half gone, and one that is created or grown is
shown when it is whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from seglog.broker.codes import Code, RefusedError
from seglog.broker.topics import Topic, Topics
from seglog.core.config import LogDirConfig
from seglog.core.descriptors import free_descriptors
from seglog.core.errors import SeglogError, TopicExistsError
from seglog.storage.log_dir import TopicInfo

T = TypeVar("T")
_log: Final = logging.getLogger("seglog.broker")
MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""As in Kafka's ``ReplicationControlManager``."""
FILES_OF_SEGMENT: Final = 5
_KEPT_BACK: Final = 128
"""File descriptors for segments to come: a log that cannot open one takes the whole directory out of use."""


class TopicChanges:
    """The one place of a broker from which its topics are changed."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._directory = topics.directory
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="seglog-topics")
        self._pending: set[asyncio.Task[object]] = set()
        self.deleted: Callable[[Topic], None] = lambda _: None
        """Is told of a topic when it is gone."""

    async def run(self, act: Callable[[], T], then: Callable[[T], object] = lambda _: None) -> T:
        """``act`` in the thread, ``then`` on the loop with its result, also if whoever asked for it has gone."""

        async def work() -> T:
            result = await asyncio.get_running_loop().run_in_executor(self._executor, act)
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

    async def create(self, name: str, partitions: int, config: Mapping[str, object]) -> Topic:
        """Errors of `LogDir.create_topic`; `RefusedError` where there are no file descriptors for so many logs."""

        def act() -> TopicInfo:
            _check_descriptors(partitions)
            return self._directory.create_topic(name, partitions, config)

        await self.run(act, self._topics.show)
        return self._topics.by_name[name]

    async def ensure(self, name: str, partitions: int, config: Mapping[str, object]) -> Topic:
        """The topic of that name, which is created if there is none."""
        try:
            return self._topics.by_name.get(name) or await self.create(name, partitions, config)
        except TopicExistsError:  # two asked at the same time
            return self._topics.by_name[name]

    async def add_partitions(self, topic: Topic, count: int) -> None:
        """Errors of `LogDir.add_partitions`; `RefusedError` where there are no file descriptors for so many logs."""

        def act() -> TopicInfo:
            _check_descriptors(count - len(topic.partitions))
            try:
                return self._directory.add_partitions(topic.name, count)
            except ValueError as error:  # somebody else was faster
                raise RefusedError(Code.INVALID_PARTITIONS, str(error)) from error

        await self.run(act, self._topics.show)

    async def alter(self, name: str, changes: Mapping[str, object | None]) -> None:
        """Errors of `LogDir.alter_config`."""
        await self.run(lambda: self._directory.alter_config(name, changes))

    async def reconfigure(self, config: LogDirConfig) -> None:
        await self.run(lambda: self._directory.reconfigure(config))

    async def delete(self, topic: Topic) -> None:
        """Delete a topic; who waits for its records is told at once. Errors of `LogDir.delete_topic`."""
        self._topics.hide(topic.name)
        for partition in topic.partitions:
            if partition is not None:
                partition.wake()
        try:
            await self.run(lambda: self._directory.delete_topic(topic.name), lambda _: self.deleted(topic))
        except BaseException:
            self._topics.refresh(topic.name)
            raise

    async def close(self) -> None:
        """Wait for what has begun."""
        await asyncio.gather(*self._pending, return_exceptions=True)
        self._executor.shutdown()


def _check_descriptors(partitions: int) -> None:
    free = free_descriptors()
    if partitions * FILES_OF_SEGMENT + _KEPT_BACK > free:
        message = f"{partitions} partitions need {partitions * FILES_OF_SEGMENT} files: {free} are left (ulimit -n)"
        raise RefusedError(Code.POLICY_VIOLATION, message)
