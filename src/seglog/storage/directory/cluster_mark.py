"""``seglog.cluster``: the cluster and node that a log directory belongs to, and the last history that it has seen.

A broker of a cluster writes the file into each of its directories before it uses them. Only that node of that cluster
may serve the directory: appends by another broker would make replicas differ in one leader epoch. It is one regular
file, which Kafka ignores; JSON, written atomically::

    {"version": 1, "cluster": "xtzWWN4bTjitpL3kfd9s5g", "node": 2, "generation": 1234, "epoch": 17}

``generation`` is the highest generation of the metadata store that this broker has acted on, ``epoch`` the last epoch
in which it was registered (`seglog.cluster.generation`). The first release did not write the file: a directory with
``seglog.life`` belongs to the cluster in ``meta.properties``.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from seglog.core.errors import CorruptCheckpointError, InvalidLogDirError
from seglog.core.fs import Fs, write_atomically
from seglog.storage.formats.checkpoints import new_cluster_id, read_meta_properties, write_meta_properties
from seglog.storage.formats.paths import CLUSTER_MARK, LIFE, LOCK

_VERSION: Final = 1


class ClusterMark(NamedTuple):
    """The owner of a directory. ``generation`` is -1 and ``broker_epoch`` 0 if none was recorded yet."""

    cluster_id: str
    node_id: int
    generation: int = -1
    broker_epoch: int = 0


def encode_mark(mark: ClusterMark) -> bytes:
    told = {
        "version": _VERSION,
        "cluster": mark.cluster_id,
        "node": mark.node_id,
        "generation": mark.generation,
        "epoch": mark.broker_epoch,
    }
    return json.dumps(told).encode() + b"\n"


def decode_mark(data: bytes, file: str | None = None) -> ClusterMark:
    """Decode the file. `CorruptCheckpointError` if it is damaged, or a later seglog has written it.

    >>> decode_mark(encode_mark(ClusterMark("xtz", 2, 1234, 17)))
    ClusterMark(cluster_id='xtz', node_id=2, generation=1234, broker_epoch=17)
    """
    try:
        told = json.loads(data)
        if told["version"] == _VERSION:
            return ClusterMark(str(told["cluster"]), int(told["node"]), int(told["generation"]), int(told["epoch"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCheckpointError(f"not the mark of a cluster: {error!r}", file=file) from error
    raise CorruptCheckpointError(f"version {told['version']}: a later seglog has written it", file=file)


def read_mark(fs: Fs, path: str) -> ClusterMark | None:
    """The mark of the log directory at ``path``; None if no seglog cluster has used it. `CorruptCheckpointError`."""
    file = os.path.join(path, CLUSTER_MARK)
    try:
        return decode_mark(fs.read(file), file)
    except FileNotFoundError:
        pass
    if not fs.exists(os.path.join(path, LIFE)):
        return None
    meta = read_meta_properties(fs, path)
    if meta is None or meta.cluster_id is None or meta.node_id is None:
        return None
    return ClusterMark(meta.cluster_id, meta.node_id)


def has_mark(fs: Fs, path: str, mark: ClusterMark) -> bool:
    """Whether the directory has exactly this mark."""
    try:
        return fs.read(os.path.join(path, CLUSTER_MARK)) == encode_mark(mark)
    except FileNotFoundError:
        return False


def write_mark(fs: Fs, path: str, mark: ClusterMark) -> None:
    write_atomically(fs, os.path.join(path, CLUSTER_MARK), encode_mark(mark))


def read_marks(fs: Fs, paths: Iterable[str]) -> dict[str, ClusterMark]:
    """The marks of those directories that have one, by path. A disk that cannot be read is skipped."""
    found = {}
    for path in paths:
        try:
            mark = read_mark(fs, path)
        except OSError:
            continue
        if mark is not None:
            found[path] = mark
    return found


def check_unmarked(fs: Fs, paths: Iterable[str]) -> None:
    """Raise `InvalidLogDirError` if a cluster has used one of these directories. Writes nothing."""
    for path, mark in read_marks(fs, paths).items():
        raise InvalidLogDirError(
            f"{path} belongs to node {mark.node_id} of cluster {mark.cluster_id}. Served alone, its logs would "
            f"diverge from the other replicas: use --cluster STORE --node-id {mark.node_id}. To serve a copy alone, "
            f"first take it out of the cluster: seglog cluster leave {path}"
        )


def check_marks(marks: Mapping[str, ClusterMark], *, cluster_id: str, node_id: int, store: str) -> None:
    """Raise `InvalidLogDirError` if one of these directories belongs to another cluster or node. Writes nothing."""
    for path, mark in marks.items():
        if mark.cluster_id != cluster_id:
            raise InvalidLogDirError(
                f"{path} belongs to node {mark.node_id} of cluster {mark.cluster_id}, and {store} is the store of "
                f"cluster {cluster_id}: give --cluster the address of its own store, or --data-dir another directory"
            )
        if mark.node_id != node_id:
            raise InvalidLogDirError(
                f"{path} belongs to node {mark.node_id} of cluster {mark.cluster_id}, not to node {node_id}: start it "
                f"with --node-id {mark.node_id}, or give node {node_id} another --data-dir"
            )


def leave_cluster(fs: Fs, paths: Sequence[str], *, rng: Random, now_ms: int) -> list[ClusterMark]:
    """Remove directories from their cluster, give all of them one new cluster id, and return their former marks.

    They keep their topics. They must not rejoin their cluster: other replicas do not have their new records.
    `InvalidLogDirError` if one has no mark; `LogDirInUseError`.
    """
    marks = read_marks(fs, paths)
    for path in paths:
        if path not in marks:
            raise InvalidLogDirError(f"{path} belongs to no cluster of seglog")
    cluster_id = new_cluster_id(rng)
    for path in paths:
        lock = fs.lock(os.path.join(path, LOCK))
        try:
            meta = read_meta_properties(fs, path)
            if meta is not None:
                write_meta_properties(fs, path, meta._replace(cluster_id=cluster_id), now_ms)
            for name in (LIFE, CLUSTER_MARK):  # the mark last: with it, no broker serves the directory alone
                if fs.exists(os.path.join(path, name)):
                    fs.unlink(os.path.join(path, name))
            fs.fsync_dir(path)
        finally:
            lock.release()
    return list(marks.values())
