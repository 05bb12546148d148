"""`seglog cluster backup|restore|accept-store|rebuild|upgrade`: back up, recover and upgrade the metadata store."""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import typer

from seglog.cli.cluster.store_session import Store, StoreConfig, with_store
from seglog.cli.options import JsonLines
from seglog.cli.output import FINE, Out, fail
from seglog.cluster.backup import (
    CLUSTER,
    accepted,
    cluster_id_of,
    decode_backup,
    encode_backup,
    restored,
    take_backup,
)
from seglog.cluster.formats import OURS, raise_format
from seglog.cluster.model import generation_of
from seglog.cluster.rebuild import FoundReplica, rebuild
from seglog.cluster.store import MISSING, Change, MetadataStore, StoreError, VersionedValue, in_commits
from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidLogDirError, LogDirInUseError
from seglog.core.fs import Fs, OsFs, is_locked, write_atomically
from seglog.storage.directory.catalog import config_of_found
from seglog.storage.directory.cluster_mark import ClusterMark, read_mark
from seglog.storage.directory.contents import resolve
from seglog.storage.directory.strays import find_strays
from seglog.storage.formats.checkpoints import read_leader_epochs, read_meta_properties, read_partition_metadata
from seglog.storage.formats.paths import LOCK, list_partitions
from seglog.storage.formats.topics_file import read_topics
from seglog.storage.log.epochs import LeaderEpochs

_LOADS: Final = 50
"""Reads of a store that keeps changing, before the backup fails."""

File = Annotated[str, typer.Argument(metavar="FILE", help="The backup.", show_default=False)]


def backup(store: Store, file: File, store_config: StoreConfig = None) -> int:
    """Write a consistent copy of a metadata store to one file. Brokers keep running."""
    taken = take_backup(asyncio.run(with_store(store, store_config, _load_all)), SystemClock().now_ms())
    write_atomically(OsFs(), os.path.abspath(file), encode_backup(taken))
    return _say(
        f"{file}: cluster {taken.cluster_id} at generation {taken.generation}, {len(taken.values)} values",
    )


def restore(store: Store, file: File, store_config: StoreConfig = None) -> int:
    """Write a backup into a new metadata store. Brokers that have seen a later generation refuse it until you run
    seglog cluster accept-store."""
    taken = decode_backup(OsFs().read(file), file)
    now_ms = SystemClock().now_ms()

    async def write(there: MetadataStore) -> None:
        await _check_empty(store, there)
        await _commit(there, restored(taken, now_ms))

    asyncio.run(with_store(store, store_config, write, must_exist=False))
    return _say(f"{store}: cluster {taken.cluster_id} at generation {taken.generation}, restored from {file}")


def accept_store(store: Store, store_config: StoreConfig = None) -> int:
    """Make brokers accept a metadata store that is older than the state that they have seen. Later changes are lost:
    topics created since become strays, and the replicas of other topics report their logs before one is elected. Stop
    all brokers first."""
    now_ms = SystemClock().now_ms()

    async def write(there: MetadataStore) -> dict[str, VersionedValue]:
        values = await _load_all(there)
        if CLUSTER not in values:
            raise StoreError(f"{store} does not contain a cluster")
        await _commit(there, accepted(values, now_ms))
        return await there.load("")

    values = asyncio.run(with_store(store, store_config, write))
    return _say(f"{store}: cluster {cluster_id_of(values)} continues at generation {generation_of(values)}")


def rebuild_store(
    store: Store,
    directories: Annotated[
        list[str],
        typer.Argument(metavar="DIR...", help="All log directories of all brokers.", show_default=False),
    ],
    min_insync: Annotated[
        int, typer.Option("--min-insync", metavar="N", min=1, help="min.insync.replicas of topics that do not set it.")
    ] = 1,
    store_config: StoreConfig = None,
) -> int:
    """Make a new metadata store from the log directories of all brokers, which must be stopped. Facts that no directory
    contains are guessed and printed."""
    fs = OsFs()
    marks: dict[str, ClusterMark] = {}
    found: list[FoundReplica] = []
    for path in map(resolve, directories):
        mark = _owner(fs, path)
        if is_locked(os.path.join(path, LOCK)):
            raise LogDirInUseError(f"{path} is in use: stop all brokers first, or they continue with the old store")
        marks[path] = mark
        found += _replicas(fs, path, mark)
    clusters = {mark.cluster_id for mark in marks.values()}
    if len(clusters) > 1:
        return fail(f"these directories belong to several clusters: {', '.join(sorted(clusters))}")
    (cluster_id,) = clusters
    broker_epoch = max(mark.broker_epoch for mark in marks.values())
    now_ms = SystemClock().now_ms()
    rebuilt = rebuild(cluster_id, found, now_ms, broker_epoch=broker_epoch, min_insync=min_insync)

    async def write(there: MetadataStore) -> None:
        await _check_empty(store, there)
        steps = [Change(name, value, MISSING) for name, value in rebuilt.values.items()]
        await _commit(there, steps)

    asyncio.run(with_store(store, store_config, write, must_exist=False))
    topics = {one.topic for one in found}
    nodes = sorted({mark.node_id for mark in marks.values()})
    return _say(
        f"{store}: cluster {cluster_id} with {len(topics)} topics and {len(found)} replicas of brokers {nodes}",
        *(f"guessed: {guess}" for guess in rebuilt.guesses),
    )


def upgrade(
    store: Store,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="FORMAT", min=1, max=OURS.high, help="By default the newest.", show_default=False),
    ] = None,
    store_config: StoreConfig = None,
    json: JsonLines = False,
) -> int:
    """Raise the format of a cluster's metadata, for good. Every registered broker must support the new format; brokers
    of an older release cannot join afterwards."""
    wanted = OURS.high if to is None else to
    before = asyncio.run(with_store(store, store_config, lambda opened: raise_format(opened, wanted)))
    with Out() as out:
        if json:
            out.json({"store": store, "before": before, "format": wanted})
        elif before == wanted:
            out.line(f"the metadata already has format {wanted}")
        else:
            out.line(f"raised the format of the metadata from {before} to {wanted}")
    return FINE


def _owner(fs: Fs, path: str) -> ClusterMark:
    """The cluster and node of a log directory: those that it is marked with, or those of its ``meta.properties`` if a
    broker served it alone. `InvalidLogDirError` if it says neither."""
    mark = read_mark(fs, path) if fs.exists(path) else None
    meta = read_meta_properties(fs, path) if mark is None and fs.exists(path) else None
    if meta is not None and meta.cluster_id is not None and meta.node_id is not None:
        mark = ClusterMark(meta.cluster_id, meta.node_id)
    if mark is None:
        raise InvalidLogDirError(f"{path} does not belong to a cluster of seglog")
    return mark


def _replicas(fs: Fs, path: str, mark: ClusterMark) -> Iterator[FoundReplica]:
    """The replicas of one log directory. A partition without a topic id does not belong to the cluster."""
    entries, is_marked = read_topics(fs, path), read_mark(fs, path) is not None
    for place in list_partitions(fs, path):
        topic, number = place.topic_partition
        topic_id = read_partition_metadata(fs, place.path)
        if topic_id is None:
            continue
        epoch = LeaderEpochs(read_leader_epochs(fs, place.path)).latest
        config = entries[topic].config if topic in entries else None
        if config is None and not is_marked:
            config = config_of_found(topic)
        yield FoundReplica(topic, topic_id, number, mark.node_id, place.path, epoch, config, generation=mark.generation)
    for found in find_strays(fs, path):
        stray = found.stray
        if stray.topic_id is not None:
            epoch = LeaderEpochs(read_leader_epochs(fs, found.path)).latest
            yield FoundReplica(
                *(stray.partition.topic, stray.topic_id, stray.partition.partition, mark.node_id, found.path, epoch),
                config=stray.config,
                is_stray=True,
                generation=mark.generation,
            )


async def _load_all(store: MetadataStore) -> dict[str, VersionedValue]:
    """All values at one moment. The store is read until two reads agree, because one read is not atomic."""
    before = await store.load("")
    for _ in range(_LOADS):
        found = await store.load("")
        if found == before:
            return found
        before = found
    raise StoreError(f"the metadata store changed during {_LOADS} reads: try again")


async def _check_empty(address: str, store: MetadataStore) -> None:
    names = await store.load("")
    if names:
        raise StoreError(f"{address} is not empty: name a new file, or a new cluster in ZooKeeper")


async def _commit(store: MetadataStore, steps: Iterable[Change]) -> None:
    for commit in in_commits(list(steps)):
        await store.commit(commit)


def _say(*lines: str) -> int:
    with Out() as out:
        for line in lines:
            out.line(line)
    return FINE
