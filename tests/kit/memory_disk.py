"""Files and directories as a disk has them after a power cut.

Every file and directory has two states: what programs see, and what is durable. In between stands the list of changes
that were not fsynced. A crash keeps of that list what a disk may keep:

- of a file: any prefix of the writes, the next one perhaps torn at 512 bytes or 4 KiB; or pages in any order, where a
  page that was not written reads as before, as zeros beyond the old end; what was written behind a cut is not seen
  without the cut;
- of a mapped file: each changed page old or new;
- of a directory: any prefix of its creations, renames and deletions. A rename is atomic. Nothing orders one directory
  against another or against the data of files, which is less than ext4 or XFS promise.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final, NamedTuple

from seglog.core.types import Buffer

SECTOR: Final = 512
PAGE: Final = 4096


class Write(NamedTuple):
    position: int
    data: bytes


class Truncate(NamedTuple):
    size: int


def _resize(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))


def _apply(image: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        _resize(image, change.size)
    else:
        end = change.position + len(change.data)
        if len(image) < end:
            _resize(image, end)
        image[change.position : end] = change.data


class MemoryInode:
    """A file's bytes. ``data`` is handed out as the buffer of maps, and replaced by every change of the size."""

    __slots__ = ("allocated", "data", "durable", "mapped", "mode", "mtime_ms", "pending")

    def __init__(self, mtime_ms: int, image: bytearray | None = None) -> None:
        self.data = bytearray() if image is None else image
        self.allocated = len(self.data)
        """Up to here the file has its place on the disk; behind it there is a hole, which costs nothing."""
        self.durable = bytearray(self.data)
        self.pending: list[Write | Truncate] = []
        self.mapped = False
        self.mtime_ms = mtime_ms
        self.mode = 0o644

    def write(self, data: Buffer, position: int) -> None:
        change = Write(position, bytes(data))
        end = position + len(change.data)
        if end > len(self.data):
            self.truncate(end, record=False)
        self.data[position:end] = change.data
        self.allocated = max(self.allocated, end)
        self.pending.append(change)

    def truncate(self, size: int, *, record: bool = True) -> None:
        self.allocated = min(self.allocated, size)
        if size != len(self.data):
            try:
                _resize(self.data, size)
            except BufferError:  # a reader looks at the old map: it keeps it, as with a real one
                self.data = bytearray(self.data[:size]) + bytes(max(0, size - len(self.data)))
            if record:
                self.pending.append(Truncate(size))

    def sync(self) -> None:
        if self.mapped:
            self.durable = bytearray(self.data)
        else:
            for change in self.pending:
                _apply(self.durable, change)
        self.pending.clear()

    def lose_pending(self) -> None:
        """A failed fsync: Linux marks the pages clean, so that the next fsync succeeds without having written them."""
        self.pending.clear()

    @property
    def is_durable(self) -> bool:
        return not self.pending and (not self.mapped or self.data == self.durable)

    def image_after_crash(self, rng: random.Random) -> bytearray:
        if self.is_durable:
            return bytearray(self.durable)
        outcome = rng.randrange(5)
        if outcome == 0:
            return bytearray(self.durable)
        if outcome == 1:
            return bytearray(self.data)
        if self.mapped or outcome == 2:
            return self._scattered(rng)
        return self._prefix(rng)

    def _prefix(self, rng: random.Random) -> bytearray:
        image = bytearray(self.durable)
        kept = rng.randrange(len(self.pending) + 1)
        for change in self.pending[:kept]:
            _apply(image, change)
        following = self.pending[kept] if kept < len(self.pending) else None
        if isinstance(following, Write):
            unit = rng.choice((SECTOR, PAGE))
            first_cut = (following.position // unit + 1) * unit
            cuts = range(first_cut, following.position + len(following.data), unit)
            if cuts and rng.random() < 0.7:
                cut = rng.choice(cuts)
                _apply(image, Write(following.position, following.data[: cut - following.position]))
        return image

    def _scattered(self, rng: random.Random) -> bytearray:
        image = bytearray(self.durable)
        kept = rng.randrange(len(self.pending) + 1)
        for change in self.pending[:kept]:
            if isinstance(change, Truncate):
                _resize(image, change.size)
            elif (end := change.position + len(change.data)) > len(image):
                _resize(image, end)
        # What was written behind a cut goes to new blocks: it never shows up among the old bytes that the cut left
        cuts = [change.size for change in self.pending[kept:] if isinstance(change, Truncate)]
        limit = min([len(image), *cuts])
        unit = rng.choice((SECTOR, PAGE))
        likely = rng.random()
        for start in range(0, limit, unit):
            end = min(start + unit, limit)
            page = self.data[start:end]
            if page and image[start : start + len(page)] != page and rng.random() < likely:
                image[start : start + len(page)] = page
        return image


class NameChange(NamedTuple):
    """``name`` in ``directory`` now stands for ``node``, or for nothing."""

    directory: MemoryDirectory
    name: str
    node: MemoryInode | MemoryDirectory | None


class Operation(NamedTuple):
    """Changes of names that happen together or not at all; compared by identity."""

    changes: tuple[NameChange, ...]

    def directories(self) -> list[MemoryDirectory]:
        return list({id(change.directory): change.directory for change in self.changes}.values())


class MemoryDirectory:
    """Names, as programs see them and as they are on the disk."""

    __slots__ = ("durable", "entries", "mode", "mtime_ms", "pending")

    def __init__(self, mtime_ms: int) -> None:
        self.entries: dict[str, MemoryInode | MemoryDirectory] = {}
        self.durable: dict[str, MemoryInode | MemoryDirectory] = {}
        self.pending: list[Operation] = []
        self.mtime_ms = mtime_ms
        self.mode = 0o755

    def sync(self) -> None:
        while self.pending:
            _commit(self.pending[0])


def perform(*changes: NameChange) -> None:
    """Change names, visibly at once, durably when one of the directories is fsynced or when a crash is kind."""
    operation = Operation(changes)
    for directory, name, node in changes:
        if node is None:
            del directory.entries[name]
        else:
            directory.entries[name] = node
    for directory in operation.directories():
        directory.pending.append(operation)


def _set(names: dict[str, MemoryInode | MemoryDirectory], change: NameChange) -> None:
    if change.node is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.node


def _commit(operation: Operation) -> None:
    for directory in operation.directories():
        while directory.pending[0] is not operation:
            _commit(directory.pending[0])
    for change in operation.changes:
        _set(change.directory.durable, change)
    for directory in operation.directories():
        directory.pending.pop(0)


def _all_directories(root: MemoryDirectory) -> list[MemoryDirectory]:
    found: dict[int, MemoryDirectory] = {}
    waiting: list[MemoryInode | MemoryDirectory | None] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, MemoryDirectory) and id(node) not in found:
            found[id(node)] = node
            waiting.extend(node.durable.values())
            waiting.extend(node.entries.values())
            waiting.extend(change.node for operation in node.pending for change in operation.changes)
            waiting.extend(change.directory for operation in node.pending for change in operation.changes)
    return list(found.values())


def _kept_operations(directories: Iterable[MemoryDirectory], rng: random.Random) -> dict[int, int]:
    """How many of each directory's pending operations survive, by ``id``; one that spans two survives in both."""
    all_directories = list(directories)
    kept = {id(directory): rng.randrange(len(directory.pending) + 1) for directory in all_directories}
    changed = True
    while changed:
        changed = False
        for directory in all_directories:
            for index, operation in enumerate(directory.pending[: kept[id(directory)]]):
                if any(
                    not any(operation is one for one in other.pending[: kept[id(other)]])
                    for other in operation.directories()
                ):
                    kept[id(directory)] = index
                    changed = True
                    break
    return kept


def tree_after_crash(root: MemoryDirectory, rng: random.Random) -> MemoryDirectory:
    """A new tree with what the disk holds after a power cut now; ``root`` stays as it is."""
    kept = _kept_operations(_all_directories(root), rng)
    copies: dict[int, MemoryInode | MemoryDirectory] = {}

    def survive(node: MemoryInode | MemoryDirectory) -> MemoryInode | MemoryDirectory:
        if id(node) in copies:
            return copies[id(node)]
        copy: MemoryInode | MemoryDirectory
        if isinstance(node, MemoryInode):
            copy = MemoryInode(node.mtime_ms, node.image_after_crash(rng))
            copy.mode = node.mode
            copies[id(node)] = copy
            return copy
        copy = MemoryDirectory(node.mtime_ms)
        copy.mode = node.mode
        copies[id(node)] = copy
        names = dict(node.durable)
        for operation in node.pending[: kept[id(node)]]:
            for change in operation.changes:
                if change.directory is node:
                    _set(names, change)
        copy.entries = {name: survive(child) for name, child in sorted(names.items())}
        copy.durable = dict(copy.entries)
        return copy

    survivor = survive(root)
    assert isinstance(survivor, MemoryDirectory)
    return survivor
