"""Producer ids, and the state of producers: InitProducerId, DescribeProducers.

A broker takes blocks of 1,000 ids from the metadata store. After a crash the rest of a block is lost, so that no id is
assigned twice (Kafka's ``RPCProducerIdManager``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from seglog.broker.requests import NO_SUCH_PARTITION, Answer, ApiHandler, RequestContext
from seglog.broker.topics.topics import Topics
from seglog.cluster.store import MetadataStore, NameExistsError, VersionChangedError
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

BLOCK: Final = 1000
_AHEAD: Final = BLOCK // 10
"""How many ids are left when the next block is fetched, so that no producer waits."""
_NAME: Final = "producer-ids"


class ProducerIds:
    """Assigns producer ids, each once."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._blocks: list[range] = []
        self._fetching: asyncio.Task[None] | None = None

    def take(self) -> int | None:
        """An id, or None if the caller must wait for a block with `next`."""
        while self._blocks and not self._blocks[0]:
            self._blocks.pop(0)
        if not self._blocks:
            return None
        taken, self._blocks[0] = self._blocks[0][0], self._blocks[0][1:]
        if sum(map(len, self._blocks)) < _AHEAD:
            self._begin_fetch()
        return taken

    async def next(self) -> int:
        """An id, after a wait if need be. `StoreError` if the store fails."""
        while (taken := self.take()) is None:
            await asyncio.shield(self._begin_fetch())
        return taken

    def _begin_fetch(self) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(_look_at_failure)
        return self._fetching

    async def _fetch(self) -> None:
        """Take a block. All its ids count as used from now on."""
        while True:
            found = await self._store.get(_NAME)
            start = 0 if found is None else int(found.value)
            value = b"%d" % (start + BLOCK)
            try:
                if found is None:
                    await self._store.create(_NAME, value)
                else:
                    await self._store.cas(_NAME, value, found.version)
            except (NameExistsError, VersionChangedError):
                continue
            self._blocks.append(range(start, start + BLOCK))
            return

    async def close(self) -> None:
        if self._fetching is not None:
            await asyncio.gather(self._fetching, return_exceptions=True)


def _look_at_failure(task: asyncio.Task[None]) -> None:
    """Mark the error as seen. The next caller fetches again and gets its own error."""
    if not task.cancelled():
        task.exception()


class ProducerApis:
    """Answers DescribeProducers."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {ApiKey.DESCRIBE_PRODUCERS: self.describe_producers}

    def describe_producers(self, request: Message, _: RequestContext) -> Answer:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [self._producers_of(topic.name, number) for number in topic.partition_indexes],
                }
                for topic in request.topics
            ]
        }

    def _producers_of(self, topic: str, number: int) -> dict[str, Any]:
        partition = self._topics.partition(topic, number)
        if partition is None:
            message = None if topic in self._topics.by_name else NO_SUCH_PARTITION
            code = self._topics.why_not(topic, number)
            return {"partition_index": number, "error_code": code, "error_message": message}
        log = partition.log
        with log.lock:  # the thread that forgets idle producers takes it too
            return {
                "partition_index": number,
                "active_producers": [
                    {
                        "producer_id": producer_id,
                        "producer_epoch": entry.epoch,
                        "last_sequence": entry.last_sequence,
                        "last_timestamp": entry.last_timestamp,
                        "coordinator_epoch": entry.coordinator_epoch,
                        "current_txn_start_offset": _or_none(entry.current_txn_first_offset),
                    }
                    for producer_id, entry in list(log.producers.entries.items())
                ],
            }


def _or_none(offset: int | None) -> int:
    return -1 if offset is None else offset
