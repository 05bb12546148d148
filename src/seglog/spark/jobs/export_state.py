"""The state of an export, ``_seglog_export/state.json`` in its output, and the atomic step that commits a run.

::

    <output>/topic=flights/date=2013-01-01/00000-00000000000000000000-00000000000000040000-0000.parquet
    <output>/_seglog_export/state.json           the exported offsets, and the files to rename
    <output>/_seglog_export/.lock                held while an export runs
    <output>/_seglog_export/staging/<run>/…      what workers write; readers of Parquet skip names with _ or .

All files of a run are complete and on the disk in staging when a new state that names them replaces the old one
(`commit`). After that they are only renamed (`finish`), by this run or, if it dies, by the next one. So every reader
sees a record once or not at all, and the state says which offsets are exported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from seglog.core.errors import CorruptCheckpointError, LogDirInUseError, SeglogError
from seglog.core.fs import Fs, make_directories, remove_tree, write_atomically
from seglog.core.types import TopicPartition

OWN: Final = "_seglog_export"
STATE: Final = "state.json"
_LOCK: Final = ".lock"
_STAGING: Final = "staging"
_VERSION: Final = 1


class ExportInUseError(SeglogError):
    """Another export is writing to the same output."""


class StagedFile(NamedTuple):
    """A finished file: its path in staging, its final path (both relative to the output), its records and bytes."""

    staged: str
    final: str
    records: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportState:
    """The content of an output: the records of each partition before ``offsets``.

    ``shape`` is the form of the files, the same in all runs. ``ids`` has the ids of the topics that have one.
    ``pending`` are the files of a committed run that may not have their final names yet.
    """

    shape: Mapping[str, Any] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0
    records: int = 0
    pending: tuple[StagedFile, ...] = ()


def read_state(fs: Fs, output: str) -> ExportState | None:
    """The state; None before the first run. Raises `CorruptCheckpointError` if the file is not such a state."""
    path = os.path.join(output, OWN, STATE)
    if not fs.exists(path):
        return None
    try:
        content = json.loads(fs.read(path))
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}, and this seglog knows {_VERSION}")
        return ExportState(
            shape=dict(content["shape"]),
            offsets={
                TopicPartition(topic, int(partition)): int(offset)
                for topic, partitions in content["offsets"].items()
                for partition, offset in partitions.items()
            },
            ids=dict(content["ids"]),
            runs=int(content["runs"]),
            records=int(content["records"]),
            pending=tuple(StagedFile(*one) for one in content["pending"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"not the state of an export: {error}", file=path) from error


def write_state(fs: Fs, output: str, state: ExportState) -> None:
    offsets: dict[str, dict[str, int]] = {}
    for name in sorted(state.offsets):
        offsets.setdefault(name.topic, {})[str(name.partition)] = state.offsets[name]
    content = {
        "version": _VERSION,
        "shape": dict(state.shape),
        "offsets": offsets,
        "ids": dict(sorted(state.ids.items())),
        "runs": state.runs,
        "records": state.records,
        "pending": [list(one) for one in state.pending],
    }
    write_atomically(fs, os.path.join(output, OWN, STATE), json.dumps(content, indent=1).encode() + b"\n")


@contextmanager
def locked(fs: Fs, output: str) -> Iterator[None]:
    """Hold the lock of the output. Raises `ExportInUseError` if another export has it."""
    make_directories(fs, os.path.join(output, OWN))
    try:
        lock = fs.lock(os.path.join(output, OWN, _LOCK))
    except LogDirInUseError as error:
        raise ExportInUseError(f"another export is writing to {output}") from error
    try:
        yield
    finally:
        lock.release()


def commit(fs: Fs, output: str, state: ExportState, files: Sequence[StagedFile]) -> ExportState:
    """Commit a run: store ``state``, the one after the run, and give its ``files`` their names."""
    decided = replace(state, pending=tuple(files))
    write_state(fs, output, decided)
    return finish(fs, output, decided)


def finish(fs: Fs, output: str, state: ExportState) -> ExportState:
    """Rename the ``pending`` files that still need it."""
    if not state.pending:
        return state
    changed = set()
    for one in state.pending:
        staged, final = os.path.join(output, one.staged), os.path.join(output, one.final)
        directory = os.path.dirname(final)
        if directory not in changed:
            make_directories(fs, directory)
            changed.add(directory)
        with suppress(FileNotFoundError):  # the run that died has renamed it
            fs.rename(staged, final)
        if not fs.exists(final):
            raise CorruptCheckpointError(f"neither {staged} nor {final} exists", file=os.path.join(OWN, STATE))
    for directory in sorted(changed):
        fs.fsync_dir(directory)
    done = replace(state, pending=())
    write_state(fs, output, done)
    return done


def staging_of(run: str) -> str:
    """The staging directory of a run, relative to the output."""
    return os.path.join(OWN, _STAGING, run)


def clear_staging(fs: Fs, output: str) -> None:
    """Remove the files of runs that died before their commit; call it after `finish`. A worker may still write some."""
    path = os.path.join(output, OWN, _STAGING)
    if fs.exists(path):
        with suppress(OSError):
            remove_tree(fs, path)
