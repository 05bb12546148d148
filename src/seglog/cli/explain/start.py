"""Whether a broker would start on log directories, and what the start would do: the engine itself is asked.

It opens the directories over `seglog.core.overlay_fs.OverlayFs`, so every check and every change is its own, and
nothing is written.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence

from seglog.cli.explain.words import Statement, say
from seglog.cli.output import count, format_size
from seglog.core.clock import Clock
from seglog.core.errors import SeglogError
from seglog.core.fs import Fs, is_locked
from seglog.core.ground import Ground
from seglog.core.overlay_fs import OverlayFs
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.formats.checkpoints import read_clean_shutdown
from seglog.storage.formats.paths import LOCK
from seglog.storage.log.recovery import RecoveryReport


def start_statements(
    fs: Fs, clock: Clock, paths: Sequence[str], *, cluster_id: str | None, node_id: int | None
) -> list[Statement]:
    """About all directories of one broker. ``cluster_id`` and ``node_id``: those that its configuration has."""
    locked = [path for path in paths if is_locked(os.path.join(path, LOCK))]
    if locked:
        texts = {
            path: f"{path} is open: a broker or another seglog holds {LOCK}, and a second start is refused"
            for path in locked
        }
        return [say("start", "lock", text, path=path, isRefused=True) for path, text in texts.items()]
    clean = {path for path in paths if read_clean_shutdown(fs, path) is not None}
    ground = Ground(fs=OverlayFs(fs, clock), clock=clock)
    try:
        opened = LogDirs.open(paths, ground=ground, cluster_id=cluster_id, node_id=node_id, hw_follows_end=True)
    except SeglogError as error:
        text = f"the start is refused: {error}"
        return [say("start", "log directory", text, path=paths[0], isRefused=True)]
    found: list[Statement] = []
    try:
        for path, reason in opened.offline.items():
            text = f"{path} stays offline, and the broker starts without it: {reason}"
            found.append(say("start", "log directory", text, path=path, isRefused=True))
        for directory in opened.dirs:
            found += _directory_statements(directory, is_clean=directory.path in clean)
    finally:
        opened.close()
    return found


def _directory_statements(directory: LogDir, *, is_clean: bool) -> list[Statement]:
    path = directory.path
    reports = list(directory.reports.values())
    found = [_summary(path, reports, is_clean=is_clean)]
    found += [
        say("start", "damage", f"{partition} is refused: {error}", path=path, partition=str(partition), isRefused=True)
        for partition, error in sorted(directory.refused.items(), key=lambda one: one[0])
    ]
    for report in reports:
        found += _report_statements(path, report)
    return found


def _summary(path: str, reports: Sequence[RecoveryReport], *, is_clean: bool) -> Statement:
    scanned = sum(report.bytes_scanned for report in reports)
    text = f"{path} starts with {count(len(reports), 'partition')}"
    if is_clean:
        text += "; it was closed cleanly (.kafka_cleanshutdown), so nothing has to be recovered"
    else:
        text += (
            "; it was not closed cleanly (.kafka_cleanshutdown is missing), so the start checks what the recovery "
            f"points do not cover: {format_size(scanned)}"
        )
    return say("start", "clean shutdown", text, path=path, isRefused=False, bytesChecked=scanned)


def _report_statements(path: str, report: RecoveryReport) -> list[Statement]:
    partition = str(report.topic_partition)
    texts = []
    if report.cut is not None:
        texts.append(("recovery", f"{partition} is cut: {report.cut}"))
    if report.emptied is not None:
        texts.append(("log start offset", f"{partition} is emptied: {report.emptied}"))
    for base_offset, reason in report.rebuilt.items():
        texts.append(("indexes", f"{partition}: the indexes of segment {base_offset} are made anew, since {reason}"))
    texts += [("producer snapshots", f"{partition}: {reason}; it is made anew") for reason in report.unreadable]
    return [say("start", rule, text, path=path, partition=partition, isRefused=False) for rule, text in texts]
