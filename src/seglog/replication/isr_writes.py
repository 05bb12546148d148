"""Writes the ISRs that leaders propose into the metadata store (``AlterPartitionManager``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.generation import commit_raised
from seglog.cluster.membership import Membership
from seglog.cluster.model import PartitionState, encode, partition_name
from seglog.cluster.store import (
    Change,
    CommitConflictError,
    MetadataStore,
    StoreClosedError,
    StoreFailedError,
    UnknownOutcomeError,
)
from seglog.replication.progress import Progress
from seglog.replication.replica import Replica

_logger: Final = logging.getLogger("seglog.replication")
_RETRY_SECONDS: Final = 0.2


class IsrWrites:
    """Each partition has at most one change in flight; `close` cancels those in flight."""

    def __init__(
        self, store: MetadataStore, view: ClusterView, membership: Membership, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._view = view
        self._membership = membership
        self._now_ms = now_ms
        self._writing: set[asyncio.Task[None]] = set()

    def propose(self, replica: Replica, *, shrinks: bool = False) -> None:
        """Write another ISR if this broker leads and the ISR has to change; only with ``shrinks`` do members leave."""
        progress = replica.progress
        if progress is None or not self._membership.is_certain:
            return
        proposed = replica.propose_isr(self._view.brokers, self._now_ms(), shrinks=shrinks)
        if proposed is not None:
            writing = self._write(replica, progress, proposed, progress.version)
            task = asyncio.get_running_loop().create_task(writing)
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    def propose_joins(self, replica: Replica) -> None:
        """As `propose`, if the ISR is incomplete."""
        progress = replica.progress
        if progress is not None and len(progress.state.isr) < len(progress.state.replicas):
            self.propose(replica)

    async def close(self) -> None:
        for task in self._writing:
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _write(self, replica: Replica, progress: Progress, proposed: PartitionState, version: int) -> None:
        """Compare and set the state from which ``proposed`` was made, at ``version``: ``progress`` may have a later one
        by now. The view's listener takes over the result."""
        name, value = _name(replica), encode(proposed)
        if proposed.isr != progress.state.isr:
            _logger.info("%s: the ISR is now %s", replica.topic_partition, proposed.isr_nodes)
        # Raise the generation: an older copy of the store names members that have left, or calls the partition new.
        is_forgotten = progress.state.is_new or not set(proposed.isr) >= set(progress.state.isr)
        try:
            if is_forgotten:
                (written,) = await commit_raised(self._store, [Change(name, value, version)])
            else:
                written = await self._store.cas(name, value, version)
        except (UnknownOutcomeError, StoreClosedError):
            await self._read_again(replica, version, progress, proposed)
        except (CommitConflictError, StoreFailedError):
            await self._refused(replica, progress, proposed)
        except Exception:  # else the ISR of this partition would never change again
            _logger.exception("%s: it is unknown whether the ISR was written", replica.topic_partition)
            await self._read_again(replica, version, progress, proposed)
        else:
            self._view.note(name, value, written)

    async def _read_again(self, replica: Replica, version: int, progress: Progress, proposed: PartitionState) -> None:
        """It is unknown whether the change was written: read the state (KAFKA-2729)."""
        while progress.proposed is proposed:
            try:
                found = await self._store.get(_name(replica))
            except StoreClosedError:
                return
            except StoreFailedError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if found is None or found.version == version:
                await self._refused(replica, progress, proposed)
            else:
                self._view.note(_name(replica), found.value, found.version)
            return

    async def _refused(self, replica: Replica, progress: Progress, proposed: PartitionState) -> None:
        """Wait before the next proposal: each fetch of a follower would otherwise propose the same, a thousand times a
        second."""
        await self._view.until(lambda: progress.proposed is not proposed, _RETRY_SECONDS)
        if progress.proposed is proposed:
            progress.refused()
        self.propose(replica)  # a quiet partition may have no fetch that proposes it


def _name(replica: Replica) -> str:
    return partition_name(replica.topic_id, replica.topic_partition.partition)
