"""`seglog cluster leave` and `strays`: log directories of a cluster, and replicas that it no longer has."""

from __future__ import annotations

import os.path
from random import SystemRandom
from typing import Annotated

import typer

from seglog.cli.options import ShowOnly, Yes, confirm
from seglog.cli.output import FINE, Out, fail, format_size, name_all, show_table
from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import Fs, OsFs, remove_tree
from seglog.storage.directory.cluster_mark import leave_cluster, read_mark
from seglog.storage.directory.contents import deleted_name, resolve
from seglog.storage.directory.strays import StrayDirectory, find_strays, size_of
from seglog.storage.formats.checkpoints import encode_id, new_id

Directories = Annotated[list[str], typer.Argument(metavar="DIR...", help="Log directories.", show_default=False)]


def leave(
    directories: Directories,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the clusters and change nothing.")] = False,
) -> int:
    """Remove the log directories of one broker from their cluster, so that a broker can serve them alone.

    They cannot rejoin the cluster: use a copy, or directories of a cluster that no longer exists."""
    paths = [resolve(path) for path in directories]
    if dry_run:
        return _show_marks(paths)
    confirm(f"Remove {', '.join(paths)} from the cluster?", yes=yes)
    marks = leave_cluster(OsFs(), paths, rng=SystemRandom(), now_ms=SystemClock().now_ms())
    with Out() as out:
        for path, mark in zip(paths, marks, strict=True):
            out.line(f"{path} has left cluster {mark.cluster_id}, where it belonged to broker {mark.node_id}")
    return FINE


def _show_marks(paths: list[str]) -> int:
    fs = OsFs()
    code = FINE
    with Out() as out:
        for path in paths:
            mark = read_mark(fs, path)
            if mark is None:
                code = fail(f"{path} does not belong to a cluster")
            else:
                out.line(f"{path} would leave cluster {mark.cluster_id}, where it belongs to broker {mark.node_id}")
    return code


def strays(
    directories: Directories,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="NAME", help="Delete this stray for good; repeat the option for more."),
    ] = None,
    remove_all: Annotated[bool, typer.Option("--remove-all", help="Delete all listed strays for good.")] = False,
    yes: Yes = False,
    dry_run: ShowOnly = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per stray.")] = False,
) -> int:
    """List replicas that are no longer assigned to their broker. They are kept until they are assigned again or
    removed here. A broker may have the directories open."""
    fs = OsFs()
    found = [one for path in directories for one in find_strays(fs, _there(fs, path))]
    names = {one.name for one in found}
    unknown = [name for name in remove or () if name not in names]
    if unknown:
        return fail(f"no stray has the name {unknown[0]} in {', '.join(directories)}")
    doomed = {one.path for one in found if remove_all or one.name in (remove or ())}
    rows = [(one, size_of(fs, one.path)) for one in found]
    if doomed and not dry_run:
        confirm(f"Delete {name_all('stray', sorted(doomed))} for good?", yes=yes)
    for one in found:
        if one.path in doomed and not dry_run:
            _remove(fs, one)
    _print(rows, doomed, json=json, dry_run=dry_run)
    return FINE


def _there(fs: Fs, path: str) -> str:
    resolved = resolve(path)
    if not fs.exists(resolved) or not fs.stat(resolved).is_dir:
        raise InvalidLogDirError(f"{resolved} is not a directory")
    return resolved


def _remove(fs: Fs, found: StrayDirectory) -> None:
    """Rename the stray first, so that a broker that takes it back at the same time finds all of it or nothing."""
    log_dir = os.path.dirname(found.path)
    target = os.path.join(log_dir, deleted_name(found.stray.partition, new_id(SystemRandom())))
    fs.rename(found.path, target)
    fs.fsync_dir(log_dir)
    remove_tree(fs, target)


def _print(rows: list[tuple[StrayDirectory, int]], doomed: set[str], *, json: bool, dry_run: bool) -> None:
    fate = "would be removed" if dry_run else "removed"
    with Out() as out:
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
                        "removed": one.path in doomed and not dry_run,
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
                        fate if one.path in doomed else "",
                    )
                    for one, size in rows
                ],
                right=("epoch", "size"),
            )
