"""How far the metadata store has come, so that a store that went back in time is noticed.

The generation of a store rises with each commit that creates, changes or deletes a topic, elects a leader, or takes a
member out of an ISR, and in that same commit: `RAISED` is one of its steps. It is the version of ``generation``, which
the store itself raises, so that no commit waits for another, above the number at ``generation/base``, which only a
decision of an operator raises.

A broker writes down the highest generation that it has seen twice: at ``seen/<node id>`` in the store, and then in its
log directories (`seglog.storage.directory.cluster_mark`). A store that has a lower generation than a directory, or
knows of a lower one for its broker, is an older copy, also when it has gone on since: what was created, deleted or
elected meanwhile is not in it. The broker refuses to serve on it until an operator has decided, which raises the base
above all that was seen. Two more proofs are a leader epoch in a log above that of the partition's state, and a broker
epoch that was handed out and is not counted.
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
"""How often a generation is written down for itself. Whoever makes or removes logs writes it down before."""
_PATIENCE_SECONDS: Final = 5.0
"""How long the store may take to note one; a store that is away asks for no change."""
Write = Callable[[int], None]
_log: Final = logging.getLogger("seglog.cluster")


async def commit_raised(store: MetadataStore, steps: Sequence[CommitStep]) -> Versions:
    """A commit that raises the generation, also of a store that has none yet. Errors of `MetadataStore.commit`."""
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
            f"{store} went back in time: {proof}. Nothing is served until it is decided: put the newer store back; or "
            f'accept this one, with "seglog cluster accept-store --store {store}"; or make it anew from the log '
            'directories, with "seglog cluster rebuild" (docs/replication.md, "The drill")'
        )


def seen_name(node_id: int) -> str:
    return f"{SEEN}/{node_id}"


def names_to_check(node_id: int) -> tuple[str, ...]:
    """What `check_store` is to be given the values of."""
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
    """`StoreWentBackError` if ``directory``, of broker ``node_id``, has seen a later store than one with ``values``."""
    found, base = generation_of(values), count(GENERATION_BASE, values.get(GENERATION_BASE))
    if found < generation:
        raise StoreWentBackError(store, f"it is at generation {found}, and {directory} has seen {generation}")
    if generation < base:
        return  # from before the last decision of an operator
    name = seen_name(node_id)
    told = count(name, values[name]) if name in values else -1
    if told < generation:
        raise StoreWentBackError(
            store, f"by it broker {node_id} has seen generation {told}, and {directory} has seen {generation}"
        )
    epochs = count(BROKER_EPOCHS, values.get(BROKER_EPOCHS))
    if epochs < broker_epoch:
        raise StoreWentBackError(
            store, f"it counts {epochs} registrations of brokers, and {directory} was used in number {broker_epoch}"
        )


def check_epochs(store: str, view: ClusterView, epochs: Iterable[tuple[UUID, int, str, int]]) -> None:
    """`StoreWentBackError` if a log has a later leader epoch than its partition in the store. ``epochs``: of each log
    its topic's id, its number, its path and its latest leader epoch."""
    for topic_id, number, path, epoch in epochs:
        stored = view.partitions.get((topic_id, number))
        if stored is not None and epoch > stored.state.leader_epoch:
            raise StoreWentBackError(
                store, f"it has leader epoch {stored.state.leader_epoch} for {path}, whose log has epoch {epoch}"
            )


class SeenGenerations:
    """Writes down what this broker has seen: ``write``, which fsyncs, is called in a thread with a generation that the
    store knows of already."""

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
        """Write down the generation that the view shows. While the store fails nothing is written."""
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
                _log.warning("generation %d is not written down yet: %s", generation, str(error) or "no answer")
                return
            try:
                await self._workers.run(partial(self._write, generation))
            except LogDirFullError as error:
                _log.warning("generation %d is not written down yet: %s", generation, error)
                return
            self._noted = generation

    async def run(self) -> None:
        """Note what the view shows, not too often, until it is cancelled. `StoreWentBackError` when it has found an
        older store."""
        while True:
            if self._view.went_back_to is not None:
                raise StoreWentBackError(
                    self._address,
                    f"it is at generation {self._view.went_back_to}, and was at {self._view.generation}",
                )
            await self.note()
            await self._view.until(lambda: self._view.went_back_to is not None, NOTE_SECONDS)
