"""``seglog.life``: since when the directories of a broker in a cluster have lost nothing (KIP-966).

A broker that had everything up to some offset says so with its epoch; after a crash others must know whether that still
holds. One regular file in each directory, which Kafka passes over; JSON, written atomically::

    {"version": 1, "kept_since": 17, "boot": "0b7c…", "directories": ["86Gyw9TlT2CBcYKTpLXG1w"], "failed": [],
     "epoch": 21, "born": 3, "whole_since": 17, "synced": {"t-0": 3}, "made": {"t-1": 19}}

``kept_since`` is the broker epoch since which nothing was lost. ``boot`` is the start of the machine in which it was
written: a process that only died leaves all that it wrote to the page cache. A start after a clean stop writes its own
(`carry_over`). ``directories`` are the ids of all
directories that the broker then had, so that one that was replaced by an empty one is noticed, and ``failed`` those of
which the disk failed: what it had not written may be gone although nothing crashed.

The second line is about the partitions of this directory, so that loss is judged for each of them. ``epoch``
is the broker's last registration: an older copy of the directory has an earlier one. The directory exists since
``born`` and has lost nothing since ``whole_since``. A partition in ``synced`` has been fsynced before anything was said
of it since that epoch (``flush.messages=1``): no power cut takes from it. One in ``made`` was made in that epoch, in a
directory that had belonged to this broker before; `PENDING` until the next registration.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from seglog.core.fs import Fs, NoSpaceError, write_atomically
from seglog.core.types import MAX_INT64
from seglog.storage.formats.paths import LIFE

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_VERSION: Final = 1
PENDING: Final = MAX_INT64


class Life(NamedTuple):
    """The content of the file. It names directories by their ids in ``meta.properties``, partitions by their names."""

    kept_since: int
    boot: str | None
    directories: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    epoch: int | None = None
    """None: an older seglog has written the file."""
    born: int = 0
    whole_since: int = 0
    synced: frozenset[tuple[str, int]] = frozenset()
    made: frozenset[tuple[str, int]] = frozenset()


def encode_life(life: Life) -> bytes:
    fields = {
        "version": _VERSION,
        "kept_since": life.kept_since,
        "boot": life.boot,
        "directories": sorted(life.directories),
        "failed": sorted(life.failed),
        "epoch": life.epoch,
        "born": life.born,
        "whole_since": life.whole_since,
        "synced": dict(sorted(life.synced)),
        "made": dict(sorted(life.made)),
    }
    return json.dumps(fields).encode() + b"\n"


def decode_life(data: bytes) -> Life | None:
    """None if the bytes cannot be read: then nothing counts as kept, which is safe."""
    try:
        told = json.loads(data)
        boot, kept_since, epoch = told["boot"], told["kept_since"], told.get("epoch")
        # Nothing says since when the directory of an older seglog exists: since its last loss at the latest.
        numbers = kept_since, told.get("born", kept_since), told.get("whole_since", kept_since)
        is_of_now = told["version"] == _VERSION and all(type(number) is int for number in numbers)
        if not is_of_now or not isinstance(boot, str | None) or not (epoch is None or type(epoch) is int):
            return None
        return Life(
            kept_since,
            boot,
            frozenset(map(str, told["directories"])),
            frozenset(map(str, told["failed"])),
            epoch,
            *numbers[1:],
            _epochs(told.get("synced", {})),
            _epochs(told.get("made", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _epochs(told: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((str(name), int(epoch)) for name, epoch in told.items())


def read_life(fs: Fs, path: str) -> Life | None:
    """The record of the log directory at ``path``; None if there is no readable file."""
    try:
        return decode_life(fs.read(os.path.join(path, LIFE)))
    except OSError:
        return None


def write_life(fs: Fs, path: str, life: Life) -> None:
    write_atomically(fs, os.path.join(path, LIFE), encode_life(life))


def boot_id(fs: Fs) -> str | None:
    """The id of this start of the machine; None if the system has none (macOS)."""
    try:
        return fs.read(BOOT_ID).decode().strip() or None
    except (OSError, ValueError):
        return None


def carry_over(fs: Fs, path: str) -> None:
    """Keep the claim of a directory that was closed cleanly over a start that is never registered. Called while the
    marker of the clean shutdown is still there: all that was written is on the disk, so from here on only another stop
    of this machine can take anything. On a full disk the file stays as it was, and claims less."""
    boot, life = boot_id(fs), read_life(fs, path)
    if boot is not None and life is not None and life.boot != boot:
        with suppress(NoSpaceError):
            write_life(fs, path, life._replace(boot=boot))
