"""Writes the ISRs that leaders propose into the metadata store (``AlterPartitionManager``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from seglog.cluster.cluster_view import ClusterView, NamedValue
from seglog.cluster.generation import commit_raised
from seglog.cluster.membership import Membership
from seglog.cluster.model import GENERATION, PartitionState, encode, partition_name
from seglog.cluster.store import (
    Change,
    Check,
    CommitConflictError,
    MetadataStore,
    StoreClosedError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionedValue,
    in_commits,
)
from seglog.replication.progress import Progress
from seglog.replication.replica import Replica

_logger: Final = logging.getLogger("seglog.replication")
_RETRY_SECONDS: Final = 0.2


class IsrProposal(NamedTuple):
    """``state``, to be written at ``version``: `Progress.proposed` of the replica's ``progress``, which may have a
    later version by the time it is written."""

    replica: Replica
    progress: Progress
    state: PartitionState
    version: int
    is_forgotten: bool
    """Raise the generation with the write: an older copy of the store names members that have left, or calls the
    partition new."""

    @property
    def name(self) -> str:
        return partition_name(self.replica.topic_id, self.replica.topic_partition.partition)

    @property
    def is_open(self) -> bool:
        """Whether the outcome is not known yet."""
        return self.progress.proposed is self.state


class IsrWrites:
    """Each partition has at most one change in flight, and this broker at most one commit: proposals that come
    meanwhile are in the next one together, so that a thousand partitions cost a few commits. `close` cancels what is in
    flight."""

    def __init__(
        self, store: MetadataStore, view: ClusterView, membership: Membership, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._view = view
        self._membership = membership
        self._now_ms = now_ms
        self._queued: list[IsrProposal] = []
        self._writing: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        """Proposals that were refused, or whose outcome is read."""

    def propose(self, replica: Replica, *, shrinks: bool = False) -> None:
        """Write another ISR if this broker leads and the ISR has to change; only with ``shrinks`` do members leave."""
        progress = replica.progress
        if progress is None or not self._membership.is_certain:
            return
        proposed = replica.propose_isr(self._view.brokers, self._now_ms(), shrinks=shrinks)
        if proposed is None:
            return
        before = progress.state
        if proposed.isr != before.isr:
            _logger.info("%s: the ISR is now %s", replica.topic_partition, proposed.isr_nodes)
        is_forgotten = before.is_new or not set(proposed.isr) >= set(before.isr)
        self._queued.append(IsrProposal(replica, progress, proposed, progress.version, is_forgotten))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="seglog-isr")

    def propose_joins(self, replica: Replica) -> None:
        """As `propose`, if the ISR is incomplete."""
        progress = replica.progress
        if progress is not None and len(progress.state.isr) < len(progress.state.replicas):
            self.propose(replica)

    async def close(self) -> None:
        tasks = [*self._open, *([] if self._writing is None else [self._writing])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_all(self) -> None:
        while self._queued:
            queued, self._queued = self._queued, []
            waiting = _commits(queued)
            while waiting:
                waiting += await self._write(waiting.pop())

    async def _write(self, some: list[IsrProposal]) -> list[list[IsrProposal]]:
        """Compare and set the states; the view's listener takes over the result. Return what to write instead if the
        commit was refused because of some of them."""
        steps = [Change(one.name, encode(one.state), one.version) for one in some]
        try:
            if any(one.is_forgotten for one in some):
                versions = await commit_raised(self._store, steps)
            else:
                versions = await self._store.commit(steps)
        except CommitConflictError:
            return await self._without_changed(some)
        except (UnknownOutcomeError, StoreClosedError):
            self._begin(self._read_again(some))
        except StoreFailedError:
            self._begin(self._refused(some))
        except Exception:  # else the ISRs of these partitions would never change again
            _logger.exception("it is unknown whether the ISRs of %d partitions were written", len(some))
            self._begin(self._read_again(some))
        else:
            self._view.note_all(
                NamedValue(step.name, VersionedValue(step.value or b"", version))
                for step, version in zip(steps, versions, strict=True)
            )
        return []

    async def _without_changed(self, some: list[IsrProposal]) -> list[list[IsrProposal]]:
        """Others have changed some of these partitions. Return the rest, in halves if a change came and went."""
        if len(some) == 1:
            self._begin(self._refused(some))
            return []
        try:
            found = await self._stored(some)
        except (StoreFailedError, StoreClosedError):
            self._begin(self._refused(some))
            return []
        same, others = _split(some, found)
        if not others:
            half = len(some) // 2
            return [some[:half], some[half:]]
        self._begin(self._refused(others))
        return [same] if same else []

    async def _stored(self, some: Sequence[IsrProposal]) -> Mapping[str, VersionedValue]:
        if len(some) > 1:
            return await self._store.get_many([one.name for one in some])
        found = await self._store.get(some[0].name)
        return {} if found is None else {some[0].name: found}

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _read_again(self, some: list[IsrProposal]) -> None:
        """It is unknown whether the changes were written: read the states (KAFKA-2729)."""
        while some := [one for one in some if one.is_open]:
            try:
                found = await self._stored(some)
            except StoreClosedError:
                return
            except StoreFailedError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            same, others = _split(some, found)
            self._view.note_all(NamedValue(one.name, found[one.name]) for one in others if one.name in found)
            await self._refused([*same, *(one for one in others if one.name not in found)])
            return

    async def _refused(self, some: list[IsrProposal]) -> None:
        """Wait before the next proposal: each fetch of a follower would otherwise propose the same, a thousand times a
        second."""
        waiting = list(some)

        def is_over() -> bool:
            while waiting and not waiting[-1].is_open:
                waiting.pop()
            return not waiting

        await self._view.until(is_over, _RETRY_SECONDS)
        for one in some:
            if one.is_open:
                one.progress.refused()
            self.propose(one.replica)  # a quiet partition may have no fetch that proposes it


def _split(
    some: Iterable[IsrProposal], found: Mapping[str, VersionedValue]
) -> tuple[list[IsrProposal], list[IsrProposal]]:
    """Those whose states are still at the version of the proposal, and the others."""
    same: list[IsrProposal] = []
    others: list[IsrProposal] = []
    for one in some:
        there = found.get(one.name)
        (same if there is not None and there.version == one.version else others).append(one)
    return same, others


def _commits(queued: Iterable[IsrProposal]) -> list[list[IsrProposal]]:
    by_name = {one.name: one for one in queued}
    steps = [Change(name, encode(one.state), one.version) for name, one in by_name.items()]
    found = in_commits(steps, [Check(GENERATION, 0)])
    return [[by_name[step.name] for step in commit if isinstance(step, Change)] for commit in found]
