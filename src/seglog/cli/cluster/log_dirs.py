"""`seglog cluster leave` and `strays`: log directories that belong to a cluster, or hold what belonged to it."""

from __future__ import annotations

import os.path
from random import SystemRandom
from typing import Annotated

import typer

from seglog.cli.output import FINE, Out, fail, format_size, show_table
from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import Fs, OsFs
from seglog.storage.directory.cluster_mark import leave_cluster
from seglog.storage.directory.contents import deleted_name, remove_tree, resolve
from seglog.storage.directory.strays import FoundStray, find_strays, size_of
from seglog.storage.formats.checkpoints import encode_id, new_id

Directories = Annotated[list[str], typer.Argument(metavar="DIR...", help="Log directories.", show_default=False)]


def leave(directories: Directories) -> int:
    """Take the log directories of one broker out of their cluster, so that they can be served alone.

    The cluster does not take them back: use it on a copy, or on what is left of a cluster that is gone."""
    paths = [resolve(path) for path in directories]
    marks = leave_cluster(OsFs(), paths, rng=SystemRandom(), now_ms=SystemClock().now_ms())
    out = Out()
    for path, mark in zip(paths, marks, strict=True):
        out.line(f"{path} has left cluster {mark.cluster_id}, of which it was node {mark.node_id}")
    out.flush()
    return FINE


def strays(
    directories: Directories,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="NAME", help="Delete this stray for good; more than once for more."),
    ] = None,
    remove_all: Annotated[bool, typer.Option("--remove-all", help="Delete all that are listed, for good.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a stray.")] = False,
) -> int:
    """Replicas that the cluster does not name any more. They are kept until they are named again, or removed here.

    A broker may have the directories open."""
    fs = OsFs()
    found = [one for path in directories for one in find_strays(fs, _there(fs, path))]
    names = {one.name for one in found}
    unknown = [name for name in remove or () if name not in names]
    if unknown:
        return fail(f"there is no stray {unknown[0]} in {', '.join(directories)}")
    doomed = {one.path for one in found if remove_all or one.name in (remove or ())}
    rows = [(one, size_of(fs, one.path)) for one in found]
    for one in found:
        if one.path in doomed:
            _remove(fs, one)
    _print(rows, doomed, json=json)
    return FINE


def _there(fs: Fs, path: str) -> str:
    resolved = resolve(path)
    if not fs.exists(resolved) or not fs.stat(resolved).is_dir:
        raise InvalidLogDirError(f"{resolved} is not a directory")
    return resolved


def _remove(fs: Fs, found: FoundStray) -> None:
    """Renamed first: a broker that takes it back at this moment has it whole, or not at all."""
    log_dir = os.path.dirname(found.path)
    target = os.path.join(log_dir, deleted_name(found.stray.partition, new_id(SystemRandom())))
    fs.rename(found.path, target)
    fs.fsync_dir(log_dir)
    remove_tree(fs, target)


def _print(rows: list[tuple[FoundStray, int]], removed: set[str], *, json: bool) -> None:
    out = Out()
    if json:
        for one, size in rows:
            topic_id = one.stray.topic_id
            out.json(
                {
                    "path": one.path,
                    "topic": one.stray.partition.topic,
                    "partition": one.stray.partition.partition,
                    "topicId": encode_id(topic_id) if topic_id else None,
                    "logStart": one.stray.log_start,
                    "logEnd": one.stray.log_end,
                    "leaderEpoch": one.stray.leader_epoch,
                    "bytes": size,
                    "removed": one.path in removed,
                }
            )
    elif not rows:
        out.line("no strays")
    else:
        show_table(
            out,
            ("stray", "topic id", "offsets", "epoch", "size", ""),
            [
                (
                    one.path,
                    encode_id(one.stray.topic_id) if one.stray.topic_id else "-",
                    f"{one.stray.log_start}-{one.stray.log_end}",
                    one.stray.leader_epoch,
                    format_size(size),
                    "removed" if one.path in removed else "",
                )
                for one, size in rows
            ],
            right=("epoch", "size"),
        )
    out.flush()
