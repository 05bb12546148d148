"""The metadata store and the log directories of a broker, opened and checked against each other.

A broker without a cluster opens its directory first: its store is in its process and shows what the directory has. In a
cluster the store comes first, and decides whether the directories may be used.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from seglog.broker.broker_tasks import BrokerTasks
from seglog.broker.ground import BrokerGround
from seglog.broker.known_producers import first_free_block
from seglog.broker.security.zookeeper_keys import zookeeper_security
from seglog.broker.topics.directory_topics import DirectoryTopics
from seglog.cluster.backup import PRODUCER_IDS
from seglog.cluster.embedded_store import EmbeddedStore
from seglog.cluster.features import FEATURES, FinalizedFeatures, encode_features, highest_levels
from seglog.cluster.formats import FORMAT, OURS
from seglog.cluster.generation import check_store, names_to_check
from seglog.cluster.store import (
    MISSING,
    Change,
    MetadataStore,
    NameExistsError,
    NoSuchStoreError,
    StoreAwayError,
    StoreFailedError,
    VersionedValue,
)
from seglog.cluster.store_address import ZOOKEEPER
from seglog.cluster.zookeeper_security import PLAIN
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import InvalidConfigError
from seglog.storage.directory.cluster_mark import ClusterMark, check_marks, check_unmarked, read_marks
from seglog.storage.directory.contents import resolve
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs, cluster_of, resolve_all
from seglog.storage.formats.checkpoints import new_cluster_id
from seglog.storage.formats.paths import FORMER_STORE, STORE


class DirectoryEvents:
    """`note` a directory whose health has changed; `take` returns the directories in that order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._noted: asyncio.Queue[LogDir] = asyncio.Queue()

    def note(self, directory: LogDir) -> None:
        """Called by the thread that notices."""
        self._loop.call_soon_threadsafe(self._noted.put_nowait, directory)

    async def take(self) -> LogDir:
        """Wait for the next directory. What became of it is in its `LogDir.health`."""
        return await self._noted.get()


_log: Final = logging.getLogger("seglog.broker")
_CLUSTER: Final = "cluster"
_LASTING: Final = ("config", FEATURES, PRODUCER_IDS)
"""Names that the store of a broker without a cluster keeps on disk; it derives the others from the directory."""
_FIRST_START_PATIENCE_MS: Final = 18_000
"""How long a store may take to answer at the first start: ``zookeeper.connection.timeout.ms`` of Kafka 3."""


class BrokerStorage(NamedTuple):
    """Opened by `StorageOpener`, closed by ``tasks``."""

    store: MetadataStore
    directories: LogDirs
    node_id: int
    cluster_id: str


class StorageOpener:
    """Opens a broker's storage. ``cluster_id`` is the id that the cluster must have, or that a new one gets;
    ``events`` note failing and full disks."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster_id: str | None,
        events: DirectoryEvents,
        ground: BrokerGround,
        tasks: BrokerTasks,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._events = events
        self._ground = ground
        self._tasks = tasks

    async def open(self) -> BrokerStorage:
        """Errors of `LogDir.open`, `StoreError`, and `InvalidConfigError` if store and directories do not match."""
        config = self._config
        node_id = config.node_id if config.node_id >= 0 else config.broker_id
        return await (self._open_in_cluster(node_id) if config.cluster_store else self._open_alone(node_id))

    # Without a cluster

    async def _open_alone(self, node_id: int) -> BrokerStorage:
        config, ground = self._config, self._ground
        await ground.workers.run(lambda: check_unmarked(ground.fs, [resolve(config.data_dir)]))
        directory = await ground.workers.run(
            partial(
                LogDir.open,
                config.data_dir,
                config=config.directory,
                background=True,
                cluster_id=self._cluster_id,
                node_id=node_id if node_id >= 0 else None,
                ground=ground,
            )
        )
        self._tasks.at_stop(ground.workers.run, directory.close)
        node_id, cluster_id = directory.meta.node_id or 0, directory.meta.cluster_id or ""
        store = await EmbeddedStore.open(
            os.path.join(directory.path, STORE),
            ground,
            lasting=_LASTING,
            backing=DirectoryTopics(directory, node_id),
            former=partial(self._read_first_release, os.path.join(directory.path, FORMER_STORE)),
        )
        self._tasks.at_stop(store.close)
        await _found_cluster(store, cluster_id)
        if await store.get(PRODUCER_IDS) is None:
            start = await ground.workers.run(partial(first_free_block, directory))
            if start > 0:
                await store.create(PRODUCER_IDS, b"%d" % start)
        return BrokerStorage(store, LogDirs.alone(directory, self._events.note), node_id, cluster_id)

    def _read_first_release(self, path: str) -> Mapping[str, VersionedValue]:
        """The store of the first release, if the directory still has one. Runs in a thread."""
        if not self._ground.fs.exists(path):
            return {}
        from seglog.cluster.sqlite_file import read_first_release  # which imports SQLite

        return read_first_release(self._ground.fs, path)

    # In a cluster

    async def _open_in_cluster(self, node_id: int) -> BrokerStorage:
        config, ground = self._config, self._ground
        if node_id < 0:
            raise InvalidConfigError("node.id is not given: each broker of a cluster has its own")
        past = await ground.workers.run(lambda: cluster_of(ground.fs, config.data_dirs))
        marks = await ground.workers.run(lambda: read_marks(ground.fs, resolve_all(config.data_dirs)))
        lone = None if past is None or past[1] in marks else past[1]
        try:
            store = await self._open_store(is_known=past is not None)
        except StoreFailedError as error:
            if lone is not None and not self._tasks.over.is_set():
                raise self._no_cluster_yet(lone) from error
            if isinstance(error, NoSuchStoreError) and past is not None:
                raise NoSuchStoreError(f"{error}. {_belongs(past)}") from error
            raise
        self._tasks.at_stop(store.close)
        cluster_id = await self._join_or_found(store, past, lone)
        check_marks(marks, cluster_id=cluster_id, node_id=node_id, store=config.cluster_store)
        await self._check_store(store, marks)
        directories = await ground.workers.run(
            partial(
                LogDirs.open,
                config.data_dirs,
                config=config.directory,
                background=True,
                cluster_id=cluster_id,
                node_id=node_id,
                changed=self._events.note,
                ground=ground,
            )
        )
        self._tasks.at_stop(ground.workers.run, directories.close)
        return BrokerStorage(store, directories, node_id, cluster_id)

    async def _open_store(self, *, is_known: bool) -> MetadataStore:
        """A broker that was in the cluster before waits for the store as long as it takes. A new broker does not: its
        address may be wrong."""
        address, session_ms = self._config.cluster_store, self._config.broker_session_timeout_ms
        security = zookeeper_security(self._config) if address.startswith(ZOOKEEPER) else PLAIN
        while True:
            opening = self._ground.open_store(
                address,
                clock=self._ground.clock,
                session_timeout_ms=session_ms,
                patience_ms=2 * session_ms if is_known else _FIRST_START_PATIENCE_MS,
                must_exist=is_known,
                security=security,
            )
            try:
                return await self._tasks.unless_over(opening, address)
            except StoreAwayError as error:
                if not is_known:
                    raise
                _log.warning("%s; this broker waits for it", error)

    async def _join_or_found(self, store: MetadataStore, past: tuple[str, str] | None, lone: str | None) -> str:
        """The cluster's id. The first broker founds the cluster, unless a directory has a ``past`` in another one: then
        the metadata are lost or the store is wrong. ``lone`` is a directory that a broker served without a cluster."""
        address = self._config.cluster_store
        found = await store.get(_CLUSTER)
        if found is None:
            if lone is not None:
                raise self._no_cluster_yet(lone)
            if past is not None:
                raise InvalidConfigError(f"{address} has no cluster. {_belongs(past)}")
            chosen = self._cluster_id or new_cluster_id(self._ground.rng)
            try:
                await _found_cluster(store, chosen)
            except NameExistsError:
                found = await store.get(_CLUSTER)
            else:
                may_be_typo = address.startswith(ZOOKEEPER)  # there a mistyped name is one more cluster
                level = logging.WARNING if may_be_typo else logging.INFO
                _log.log(level, "%s had no cluster: this broker begins cluster %s there", address, chosen)
                return chosen
        assert found is not None
        cluster_id = str(json.loads(found.value)["cluster.id"])
        if self._cluster_id not in (None, cluster_id):
            raise InvalidConfigError(f"{address} is of cluster {cluster_id}, not {self._cluster_id}")
        return cluster_id

    def _no_cluster_yet(self, directory: str) -> InvalidConfigError:
        store = self._config.cluster_store
        return InvalidConfigError(
            f"{store} has no cluster, and a broker has served {directory} alone. Have that directory begin the cluster "
            f"with its topics: seglog cluster rebuild --store {store} {directory} (docs/replication.md)"
        )

    async def _check_store(self, store: MetadataStore, marks: Mapping[str, ClusterMark]) -> None:
        """`StoreWentBackError` if a directory has seen a later state of the store. Nothing is written before."""
        for path, mark in marks.items():
            check_store(
                self._config.cluster_store,
                await store.get_many(names_to_check(mark.node_id)),
                node_id=mark.node_id,
                generation=mark.generation,
                broker_epoch=mark.broker_epoch,
                directory=path,
            )


def _belongs(past: tuple[str, str]) -> str:
    cluster, directory = past
    return (
        f"{directory} belongs to cluster {cluster}: correct the address or, if the metadata store is lost, use seglog "
        "cluster restore or seglog cluster rebuild (docs/replication.md)"
    )


async def _found_cluster(store: MetadataStore, cluster_id: str) -> None:
    """Begin a cluster in a store that has none. `NameExistsError`."""
    identity = json.dumps({"cluster.id": cluster_id}).encode()
    steps = [Change(_CLUSTER, identity, MISSING), Change(FORMAT, b"%d" % OURS.high, MISSING)]
    if await store.get(FEATURES) is None:  # a broker without a cluster keeps its levels
        levels = highest_levels(()) or {}
        steps.append(Change(FEATURES, encode_features(FinalizedFeatures(epoch=1, levels=levels)), MISSING))
    await store.commit(steps)
