"""The generation of the metadata store, by which a store that went back in time is noticed.

The generation rises with each commit that creates, changes or deletes a topic, elects a leader, or removes a member
from an ISR: `RAISED` is a step of that commit. It is the version of ``generation``, which the store itself raises, so
that no commit waits for another, plus the number at ``generation/base``, which only an operator's decision raises.

A broker stores the highest generation that it has seen in two places: at ``seen/<node id>`` in the store, and then in
its log directories (`seglog.storage.directory.cluster_mark`). A store is an older copy if its generation, or the one it
has for this broker, is lower than that of a directory, even if the store has gone on since: it lacks what was created,
deleted or elected meanwhile. The broker refuses to serve on it until an operator has decided, which raises the base
above every generation that was seen. Two more proofs are a leader epoch in a log above that of the partition's state,
and a broker epoch that was given out and is not counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.formats import BROKER_EPOCHS
from seglog.cluster.membership import count
from seglog.cluster.model import GENERATION, GENERATION_BASE, RAISED, generation_of
from seglog.cluster.store import (
    CommitStep,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    StoreError,
    VersionedValue,
    Versions,
)
from seglog.core.errors import LogDirFullError
from seglog.core.ground import Workers

SEEN: Final = "seen"
NOTE_SECONDS: Final = 2.0
"""How often a new generation is stored. It is also stored before logs are created or removed."""
_PATIENCE_SECONDS: Final = 5.0
"""How long the store may take to note a generation; while it is away there is no change to note."""
Write = Callable[[int], None]
_log: Final = logging.getLogger("seglog.cluster")


async def commit_raised(store: MetadataStore, steps: Sequence[CommitStep]) -> Versions:
    """Commit and raise the generation, also in a store that has none yet. Raises the errors of
    `MetadataStore.commit`."""
    while True:
        try:
            return (await store.commit([RAISED, *steps]))[1:]
        except NoSuchNameError:
            if await store.get(GENERATION) is not None:
                raise
            with suppress(NameExistsError):
                await store.create(GENERATION, b"0")


class StoreWentBackError(StoreError):
    """The metadata store is older than what this broker has seen of it."""

    def __init__(self, store: str, proof: str) -> None:
        super().__init__(
            f"{store} went back in time: {proof}. Nothing is served until you decide: put the newer store back; or "
            f'accept this one, with "seglog cluster accept-store --store {store}"; or rebuild it from the log '
            'directories, with "seglog cluster rebuild" (docs/replication.md, "The drill")'
        )


def seen_name(node_id: int) -> str:
    return f"{SEEN}/{node_id}"


def names_to_check(node_id: int) -> tuple[str, ...]:
    """Return the names whose values `check_store` needs."""
    return (GENERATION, GENERATION_BASE, BROKER_EPOCHS, seen_name(node_id))


def check_store(
    store: str,
    values: Mapping[str, VersionedValue],
    *,
    node_id: int,
    generation: int,
    broker_epoch: int,
    directory: str,
) -> None:
    """Raise `StoreWentBackError` if ``directory``, of broker ``node_id``, has seen a later store than one with
    ``values``."""
    found, base = generation_of(values), count(GENERATION_BASE, values.get(GENERATION_BASE))
    if found < generation:
        raise StoreWentBackError(store, f"it is at generation {found}, but {directory} has seen {generation}")
    if generation < base:
        return  # from before the last decision of an operator
    name = seen_name(node_id)
    told = count(name, values[name]) if name in values else -1
    if told < generation:
        raise StoreWentBackError(
            store, f"it records that broker {node_id} has seen generation {told}, but {directory} has seen {generation}"
        )
    epochs = count(BROKER_EPOCHS, values.get(BROKER_EPOCHS))
    if epochs < broker_epoch:
        raise StoreWentBackError(
            store, f"it counts {epochs} registrations of brokers, but {directory} was used in number {broker_epoch}"
        )


def check_epochs(store: str, view: ClusterView, epochs: Iterable[tuple[UUID, int, str, int]]) -> None:
    """Raise `StoreWentBackError` if a log has a later leader epoch than its partition in the store. ``epochs`` has, for
    each log, its topic's id, its number, its path and its latest leader epoch."""
    for topic_id, number, path, epoch in epochs:
        stored = view.partitions.get((topic_id, number))
        if stored is not None and epoch > stored.state.leader_epoch:
            raise StoreWentBackError(
                store, f"it has leader epoch {stored.state.leader_epoch} for {path}, but the log has epoch {epoch}"
            )


class SeenGenerations:
    """Stores the generations that this broker has seen. ``write`` fsyncs; it is called in a thread with a generation
    that the store has noted already."""

    def __init__(
        self, store: MetadataStore, address: str, view: ClusterView, node_id: int, write: Write, workers: Workers
    ) -> None:
        self._store = store
        self._address = address
        self._view = view
        self._name = seen_name(node_id)
        self._write = write
        self._workers = workers
        self._noted = -1
        self._writing = asyncio.Lock()

    async def note(self) -> None:
        """Store the generation of the view. While the store fails nothing is stored."""
        async with self._writing:
            generation = self._view.generation
            if generation <= self._noted or self._view.went_back_to is not None:
                return
            value = b"%d" % generation
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    found = await self._store.get(self._name)
                    if found is None:
                        await self._store.create(self._name, value)
                    else:  # by its version: a call of an earlier process may still be on its way, with a lower one
                        await self._store.cas(self._name, value, found.version)
            except (StoreError, TimeoutError) as error:
                _log.warning("generation %d is not stored yet: %s", generation, str(error) or "no answer")
                return
            try:
                await self._workers.run(partial(self._write, generation))
            except LogDirFullError as error:
                _log.warning("generation %d is not stored yet: %s", generation, error)
                return
            self._noted = generation

    async def run(self) -> None:
        """Store new generations of the view at intervals, until cancelled. Raises `StoreWentBackError` if the view has
        found an older store."""
        while True:
            if self._view.went_back_to is not None:
                raise StoreWentBackError(
                    self._address,
                    f"it is at generation {self._view.went_back_to}, and was at {self._view.generation}",
                )
            await self.note()
            await self._view.until(lambda: self._view.went_back_to is not None, NOTE_SECONDS)
