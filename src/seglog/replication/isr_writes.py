"""What leaders find out about who is in sync, on its way to the metadata store."""

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
    MetadataStore,
    NoSuchNameError,
    StoreClosedError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionChangedError,
)
from seglog.replication.progress import Progress
from seglog.replication.replica import Replica

_logger: Final = logging.getLogger("seglog.replication")
_RETRY_SECONDS: Final = 0.2


class IsrWrites:
    """One change of a partition is on its way at a time; `close` gives up those that are."""

    def __init__(
        self, store: MetadataStore, view: ClusterView, membership: Membership, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._view = view
        self._membership = membership
        self._now_ms = now_ms
        self._writing: set[asyncio.Task[None]] = set()

    def propose(self, replica: Replica, *, shrinks: bool = False) -> None:
        """Another ISR, if we lead and it has to be another one; nobody leaves it without ``shrinks``."""
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
        """As `propose`, where somebody could join."""
        progress = replica.progress
        if progress is not None and len(progress.state.isr) < len(progress.state.replicas):
            self.propose(replica)

    async def close(self) -> None:
        for task in self._writing:
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _write(self, replica: Replica, progress: Progress, proposed: PartitionState, version: int) -> None:
        """By compare-and-set on the state that it was made from, at ``version``: ``progress`` may have a later one when
        this begins. What becomes of it is taken up by who follows the view."""
        name, value = _name(replica), encode(proposed)
        if proposed.isr != progress.state.isr:
            _logger.info("%s: in sync are %s now", replica.topic_partition, proposed.isr_nodes)
        # An older copy of the store would count on who has left, or take what is written from now on for nothing.
        is_forgotten = progress.state.is_new or not set(proposed.isr) >= set(progress.state.isr)
        try:
            if is_forgotten:
                (written,) = await commit_raised(self._store, [Change(name, value, version)])
            else:
                written = await self._store.cas(name, value, version)
        except (UnknownOutcomeError, StoreClosedError):
            await self._read_again(replica, version, progress, proposed)
        except (VersionChangedError, NoSuchNameError, StoreFailedError):
            await self._refused(replica, progress, proposed)
        except Exception:  # or the ISR of this partition would never change again
            _logger.exception("%s: nobody knows whether its ISR was written", replica.topic_partition)
            await self._read_again(replica, version, progress, proposed)
        else:
            self._view.note(name, value, written)

    async def _read_again(self, replica: Replica, version: int, progress: Progress, proposed: PartitionState) -> None:
        """Nobody knows whether our change of that version was written: see what is there (KAFKA-2729)."""
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
        """Not at once: each fetch of a follower would propose the same on the same state, a thousand times a second."""
        await self._view.until(lambda: progress.proposed is not proposed, _RETRY_SECONDS)
        if progress.proposed is proposed:
            progress.refused()
        self.propose(replica)  # nobody may ask for a quiet partition


def _name(replica: Replica) -> str:
    return partition_name(replica.topic_id, replica.topic_partition.partition)
