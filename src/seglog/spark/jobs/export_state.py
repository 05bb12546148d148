"""What an export has done, in the output itself: ``_seglog_export/state.json``, and the one step in which a run counts.

::

    <output>/topic=flights/date=2013-01-01/00000-00000000000000000000-00000000000000040000-0000.parquet
    <output>/_seglog_export/state.json           the offsets that are exported, and the files of a run to be finished
    <output>/_seglog_export/.lock                held while an export runs
    <output>/_seglog_export/staging/<run>/…      what workers write; readers of Parquet pass over names with _ and .

A run's files are whole and on the disk in staging when the state is replaced by one that names them (`commit`). From
then on they are only renamed (`finish`), by this run or, if it dies, by the next one. So a record is visible once or
not at all, to every reader, and which offsets are is what the state says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from seglog.core.errors import CorruptCheckpointError, LogDirInUseError, SeglogError
from seglog.core.fs import Fs, remove_tree, write_atomically
from seglog.core.types import TopicPartition

OWN: Final = "_seglog_export"
STATE: Final = "state.json"
_LOCK: Final = ".lock"
_STAGING: Final = "staging"
_VERSION: Final = 1


class ExportInUseError(SeglogError):
    """Another export writes to the same output at this moment."""


class StagedFile(NamedTuple):
    """A finished file: where it lies, where it belongs (both relative to the output), and what is in it."""

    staged: str
    final: str
    records: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportState:
    """What an output holds: of each partition the records before ``offsets``.

    ``shape`` says what its files look like, the same for all runs. ``ids`` are the topics' ids, where they have some.
    ``pending`` are the files of a run that counts already and may not have its last names yet.
    """

    shape: Mapping[str, Any] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0
    records: int = 0
    pending: tuple[StagedFile, ...] = ()


def read_state(fs: Fs, output: str) -> ExportState | None:
    """None where nothing was exported yet; `CorruptCheckpointError` for a file that is not ours."""
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
    """`ExportInUseError` if another export has the output."""
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
    """Make ``state``, which is that behind the run, count, and give the run's ``files`` their names."""
    decided = replace(state, pending=tuple(files))
    write_state(fs, output, decided)
    return finish(fs, output, decided)


def finish(fs: Fs, output: str, state: ExportState) -> ExportState:
    """Rename what is ``pending``; as often as it takes."""
    if not state.pending:
        return state
    changed = set()
    for one in state.pending:
        staged, final = os.path.join(output, one.staged), os.path.join(output, one.final)
        directory = os.path.dirname(final)
        if directory not in changed:
            make_directories(fs, directory)
            changed.add(directory)
        with suppress(FileNotFoundError):  # renamed by the run that died
            fs.rename(staged, final)
        if not fs.exists(final):
            raise CorruptCheckpointError(f"neither {staged} nor {final} exists", file=os.path.join(OWN, STATE))
    for directory in sorted(changed):
        fs.fsync_dir(directory)
    done = replace(state, pending=())
    write_state(fs, output, done)
    return done


def make_directories(fs: Fs, path: str) -> None:
    """``path`` with all above it, on the disk."""
    if fs.exists(path):
        return
    parent = os.path.dirname(path)
    make_directories(fs, parent)
    with suppress(FileExistsError):
        fs.mkdir(path)
    fs.fsync_dir(parent)


def staging_of(run: str) -> str:
    """Relative to the output."""
    return os.path.join(OWN, _STAGING, run)


def clear_staging(fs: Fs, output: str) -> None:
    """What runs left that died before they counted; after `finish`. What a worker still writes goes with the next."""
    path = os.path.join(output, OWN, _STAGING)
    if fs.exists(path):
        with suppress(OSError):
            remove_tree(fs, path)
