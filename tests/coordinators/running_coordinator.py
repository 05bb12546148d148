"""A `GroupCoordinator` on a clock that stands still, with partitions of ``__consumer_offsets`` on a disk in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import pytest

from seglog.cli.dump.decoders import decode_offsets
from seglog.coordinators.classic.messages import JoinGroupRequest, SyncGroupRequest
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import OffsetCommit, OffsetCommitRequest
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.settings import GroupSettings
from seglog.core.clock import SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.ground import Ground
from seglog.core.topic_names import OFFSETS_TOPIC
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.reads import UpTo
from tests.coordinators.fixed_topics import FixedTopics
from tests.coordinators.shard_driver import RANGE
from tests.kit.memory_fs import MemoryFs
from tests.lone import led

SETTINGS = GroupSettings(
    group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=2, offsets_commit_timeout_ms=200
)
TOPIC = UUID(int=5)
NODE = 1


class Topic:
    """``__consumer_offsets`` in a directory."""

    def __init__(self, directory: LogDir, settings: GroupSettings) -> None:
        self.directory = directory
        self.settings = settings
        self.made = 0
        self.refuses: SeglogError | None = None
        self._partitions: list[Replica | None] = []
        self._open()

    def _open(self) -> None:
        keys = sorted(key for key in self.directory.logs if key.topic == OFFSETS_TOPIC)
        self._partitions = [led(self.directory, key, TOPIC) for key in keys]

    def partitions(self) -> Sequence[Replica | None]:
        return self._partitions

    def leader(self, number: int) -> int:
        is_here = number < len(self._partitions) and self._partitions[number] is not None
        return NODE if is_here else -1

    def is_awaited(self, number: int) -> bool:
        del number
        return False

    def lose(self, number: int) -> None:
        self._partitions[number] = None

    async def create(self) -> None:
        await asyncio.sleep(0)
        if self.refuses is not None:
            raise self.refuses
        self.made += 1
        self.directory.create_topic(
            OFFSETS_TOPIC, self.settings.offsets_topic_num_partitions, self.settings.topic_config()
        )
        self._open()


class RunningCoordinator:
    """A coordinator and its directory, in memory; `restart` closes and opens both."""

    def __init__(self, *, hw_follows_end: bool = True, settings: GroupSettings = SETTINGS) -> None:
        self.fs = MemoryFs()
        self.settings = settings
        self.topics = FixedTopics()
        self.clock = SystemClock()
        self._hw_follows_end = hw_follows_end
        self._open()

    def _open(self) -> None:
        self.directory = LogDir.open(
            "/logs", ground=Ground(fs=self.fs, rng=random.Random(1)), hw_follows_end=self._hw_follows_end
        )
        self.topic = Topic(self.directory, self.settings)
        self.coordinator = GroupCoordinator(
            self.topic, self.settings, self.topics, ground=Ground(clock=self.clock, rng=random.Random(2))
        )

    def restart(self) -> None:
        self.directory.close()
        self._open()

    def run(self, act: Callable[[GroupCoordinator], Coroutine[Any, Any, None]]) -> None:
        """Run on its own loop, while the coordinator runs."""

        async def main() -> None:
            running = asyncio.create_task(self.coordinator.run())
            await asyncio.sleep(0)
            try:
                await act(self.coordinator)
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

        asyncio.run(main())

    def written(self) -> list[tuple[str, str | None]]:
        """The keys and values, as the dump shows them."""
        found = []
        for key, log in sorted(self.directory.logs.items()):
            if key.topic == OFFSETS_TOPIC:
                for record in log.read(0, up_to=UpTo.LOG_END).records():
                    shown, value = decode_offsets(record.key, record.value, record.offset)
                    assert shown is not None
                    found.append((shown, value))
        return found


def commit(
    group: str = "g", offset: int = 1, *, generation: int = -1, member: str = "", count: int = 1
) -> OffsetCommitRequest:
    commits = [OffsetCommit(("t", number), TOPIC, offset, -1, "") for number in range(count)]
    return OffsetCommitRequest(group, generation, member, None, commits, 9)


def join(group: str = "g", *, instance: str | None = "i", session: int = 6_000) -> JoinGroupRequest:
    return JoinGroupRequest(group, "", instance, "c", "/h", session, session, "consumer", RANGE, 9)


async def stable(coordinator: GroupCoordinator, group: str = "g", *, session: int = 6_000) -> str:
    """Join as the only member of a group."""
    await coordinator.locate(group)
    joined = await coordinator.join(join(group, session=session))
    sync = SyncGroupRequest(group, joined.member_id, "i", joined.generation, None, None, {joined.member_id: b"A"})
    synced = await coordinator.sync(sync)
    assert (synced.code, synced.assignment) == (ErrorCode.NONE, b"A")
    return joined.member_id


async def others() -> None:
    """Let all other tasks run as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(CoordinatorError) as error:
        yield
    assert error.value.code is code
