"""Reports the evidence of replicas without a leader to the metadata store, for the controller to decide by.

After a power cut each broker may have thousands of such partitions at once, so they are written in few commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from seglog.cluster.cluster_view import ClusterView, NamedValue
from seglog.cluster.model import PartitionState, encode, parse_partition_name, partition_name
from seglog.cluster.store import (
    Change,
    CommitConflictError,
    MetadataStore,
    StoreClosedError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionedValue,
    in_commits,
)

Key = tuple[UUID, int]
_logger: Final = logging.getLogger("seglog.replication")
_RETRY_SECONDS: Final = 0.2
_JITTER_SECONDS: Final = 0.01


class EvidenceReports:
    """``report`` returns the state with this broker's evidence, to be written at the view's version, or None if there
    is nothing to report. Brokers that write the same partitions conflict, and retry after different delays."""

    def __init__(
        self, store: MetadataStore, view: ClusterView, node_id: int, report: Callable[[Key], PartitionState | None]
    ) -> None:
        self._store = store
        self._view = view
        self._jitter = _JITTER_SECONDS * (node_id % 10 + 1)
        self._report = report
        self._wanted: set[Key] = set()
        self._writing: asyncio.Task[None] | None = None

    def want(self, key: Key) -> None:
        """Report this partition soon, if it still has something to report then."""
        self._wanted.add(key)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="seglog-evidence")

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write_all(self) -> None:
        while self._wanted:
            keys, self._wanted = sorted(self._wanted), set()
            steps = [change for key in keys if (change := self._change(key)) is not None]
            try:
                for commit in in_commits(steps):
                    await self._write([step for step in commit if isinstance(step, Change)])
            except StoreClosedError:
                return
            except StoreFailedError as error:
                _logger.warning("the evidence of replicas cannot be reported yet: %s", error)
                self._wanted.update(keys)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:  # if this task ended, partitions would stay without a leader
                _logger.exception("the evidence of replicas cannot be reported yet")
                self._wanted.update(keys)
                await asyncio.sleep(_RETRY_SECONDS)

    def _change(self, key: Key) -> Change | None:
        stored, state = self._view.partitions.get(key), self._report(key)
        if stored is None or state is None:
            return None
        return Change(partition_name(*key), encode(state), stored.version)

    async def _write(self, steps: list[Change]) -> None:
        try:
            versions = await self._store.commit(steps)
        except (CommitConflictError, UnknownOutcomeError):
            await asyncio.sleep(self._jitter)
            found = await self._store.get_many([step.name for step in steps])
            # `Replicas` reports changed partitions again when it sees them, the next round the others.
            self._view.note_all(NamedValue(step.name, found.get(step.name)) for step in steps)
            self._wanted.update(parse_partition_name(name) for name in found)
        else:
            self._view.note_all(
                NamedValue(step.name, None if step.value is None else VersionedValue(step.value, version))
                for step, version in zip(steps, versions, strict=True)
            )
