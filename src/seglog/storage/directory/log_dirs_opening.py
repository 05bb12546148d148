"""Opening the log directories of one broker: whose they are, and which of them can be used. For `LogDirs.open`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import Random

from seglog.core.errors import CorruptCheckpointError, InvalidLogDirError, LogDirOfflineError, SeglogError
from seglog.core.fs import Fs
from seglog.storage.directory.contents import resolve
from seglog.storage.directory.loading import run_all
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import (
    MetaProperties,
    encode_id,
    new_cluster_id,
    new_id,
    read_meta_properties,
)

_logger = logging.getLogger("seglog")


def resolve_all(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """`InvalidLogDirError` where there is none, or one twice."""
    resolved = [resolve(path) for path in paths]
    if not resolved:
        raise InvalidLogDirError("log.dirs has no directory")
    for path in resolved:
        if resolved.count(path) > 1:
            raise InvalidLogDirError(f"log.dirs has {path} twice")
    return resolved


def common_meta(
    fs: Fs, paths: Sequence[str], *, cluster_id: str | None, node_id: int | None, rng: Random
) -> MetaProperties:
    """The cluster and the node that all directories belong to: as given, or as one of them says, or new ones."""
    clusters, nodes = _owners(fs, paths)
    return MetaProperties(
        cluster_id=cluster_id or next(iter(clusters), None) or new_cluster_id(rng),
        node_id=node_id if node_id is not None else next(iter(nodes), 1),
    )


def cluster_of(fs: Fs, paths: Sequence[str | os.PathLike[str]]) -> tuple[str, str] | None:
    """The cluster that directories belong to already, and the first that says so; None if all are new."""
    clusters, _ = _owners(fs, resolve_all(paths))
    return next(iter(clusters.items()), None)


def _owners(fs: Fs, paths: Sequence[str]) -> tuple[dict[str, str], dict[int, str]]:
    """The cluster and the node that directories belong to, each with the first that says so, if any does.

    `InvalidLogDirError` names two that do not agree (``MetaPropertiesEnsemble.verify``).
    """
    clusters: dict[str, str] = {}
    nodes: dict[int, str] = {}
    for path in paths:
        try:
            meta = read_meta_properties(fs, path)
        except (OSError, CorruptCheckpointError):
            continue  # found out again when it is opened
        if meta is not None and meta.cluster_id is not None:
            clusters.setdefault(meta.cluster_id, path)
        if meta is not None and meta.node_id is not None:
            nodes.setdefault(meta.node_id, path)
    for key, found in (("cluster.id", clusters), ("node.id", nodes)):
        if len(found) > 1:
            (one, here), (other, there), *_ = found.items()
            raise InvalidLogDirError(f"{here} belongs to {key} {one}, {there} to {key} {other} (meta.properties)")
    return clusters, nodes


def open_all(
    open_one: Callable[[str], LogDir], paths: Sequence[str], *, threads: int
) -> tuple[list[LogDir], dict[str, SeglogError]]:
    """Those that could be opened, and those whose disk fails. What is wrong otherwise is raised: nothing stays open."""

    def attempt(path: str) -> LogDir | SeglogError:
        try:
            return open_one(path)
        except SeglogError as error:
            return error

    results = {path: result() for path, result in run_all(attempt, paths, threads=threads, name="seglog-open")}
    opened = [one for one in results.values() if isinstance(one, LogDir)]
    errors = {path: one for path, one in results.items() if isinstance(one, SeglogError)}
    wrong = [error for error in errors.values() if not _is_of_the_disk(error)]
    if wrong or not opened:
        close_all(opened)
        if wrong or len(errors) == 1:
            raise next(iter(wrong or errors.values()))
        raise LogDirOfflineError("; ".join(map(str, errors.values())))
    for path, error in errors.items():
        _logger.error("log directory %s is offline: %s", path, error)
    return opened, errors


def _is_of_the_disk(error: SeglogError) -> bool:
    """Whether the other directories can be used without this one. One that is in use, or another's, is a slip."""
    if isinstance(error, InvalidLogDirError):
        return isinstance(error.__cause__, OSError)
    return isinstance(error, LogDirOfflineError | CorruptCheckpointError)


def identify(directories: Sequence[LogDir], rng: Random) -> None:
    """See to it that each has a ``directory.id`` of its own (KIP-858). `InvalidLogDirError` names two with one."""
    seen: dict[object, LogDir] = {}
    for directory in directories:
        meta = directory.meta
        if meta.directory_id is None and directory.health.failure is None:
            directory.identify(new_id(rng))
        elif meta.directory_id is not None:
            first = seen.setdefault(meta.directory_id, directory)
            if first is not directory:
                raise InvalidLogDirError(
                    f"{first.path} and {directory.path} have the same directory.id, {encode_id(meta.directory_id)} "
                    "(meta.properties): one is a copy of the other"
                )


def close_all(directories: Sequence[LogDir]) -> None:
    """Close them all, also if one raises."""
    with ExitStack() as closing:
        for directory in directories:
            closing.callback(directory.close)
