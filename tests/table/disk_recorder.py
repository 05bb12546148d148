"""What a power cut would take of a warehouse, at each moment of a job that writes to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from seglog.core.fs import OsFile, OsFs
from seglog.table.iceberg.layout import CATALOG


class Cut(NamedTuple):
    """The files of a warehouse at one moment: those that survive a power cut, and those that may be lost or empty.

    The catalog's bytes are those of its last commit: SQLite syncs itself, and is not in a transaction meanwhile.
    """

    survive: frozenset[str]
    at_risk: frozenset[str]
    catalog: bytes


class DiskRecorder:
    """Watches our file system from `watch` on. Files are written once, so their last content is their only one."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._unsynced: set[str] = set()
        self._unlisted: set[str] = set()
        self._contents: dict[str, bytes] = {}
        self.cuts: list[Cut] = []
        """One for each state of the disk in which something new survives, in their order."""

    @property
    def at_risk(self) -> frozenset[str]:
        """Files whose bytes, and files and directories whose entries, are not on the disk."""
        return frozenset(self._unsynced | self._unlisted)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def before(owner: type, name: str, note: Callable[..., None]) -> None:
            real = getattr(owner, name)

            def act(*given: Any, **named: Any) -> Any:
                note(*given, **named)
                return real(*given, **named)

            monkeypatch.setattr(owner, name, act)

        def after(owner: type, name: str, note: Callable[..., None]) -> None:
            real = getattr(owner, name)

            def act(*given: Any, **named: Any) -> Any:
                result = real(*given, **named)
                note(*given, **named)
                self._record()
                return result

            monkeypatch.setattr(owner, name, act)

        before(OsFs, "open", self._opened)
        before(OsFs, "write", lambda *given: self._unlisted.add(given[1]))
        before(OsFs, "mkdir", lambda *given: self._unlisted.add(given[1]))
        before(OsFs, "rename", lambda *given: self._unlisted.add(given[2]))
        before(OsFile, "pwrite", lambda *given: self._unsynced.add(given[0].path))
        after(OsFile, "fsync", lambda *given: self._unsynced.discard(given[0].path))
        after(OsFs, "fsync_dir", lambda *given: self._listed(given[1]))

    def _opened(self, _fs: OsFs, path: str, *, create: bool = False, write: bool = True) -> None:
        if create and write and not os.path.exists(path):
            self._unlisted.add(path)

    def _listed(self, directory: str) -> None:
        self._unlisted = {one for one in self._unlisted if os.path.dirname(one) != directory}

    def _record(self) -> None:
        present = {str(one) for one in self._warehouse.rglob("*") if one.is_file()}
        at_risk = {one for one in present if not self.at_risk.isdisjoint([one, *map(str, Path(one).parents)])}
        catalog = self._warehouse / CATALOG
        survive = frozenset(present - at_risk - {str(catalog)})
        for one in survive - self._contents.keys():
            self._contents[one] = Path(one).read_bytes()
        cut = Cut(survive, frozenset(at_risk), catalog.read_bytes() if catalog.exists() else b"")
        if not self.cuts or (cut.survive, cut.catalog) != (self.cuts[-1].survive, self.cuts[-1].catalog):
            self.cuts.append(cut)

    def replay(self, cut: Cut, *, leaves_empty_files: bool) -> None:
        """Make the warehouse as it is after that power cut."""
        shutil.rmtree(self._warehouse)
        self._warehouse.mkdir()
        contents = {path: self._contents[path] for path in cut.survive}
        if leaves_empty_files:
            contents |= dict.fromkeys(cut.at_risk, b"")
        if cut.catalog:
            contents[str(self._warehouse / CATALOG)] = cut.catalog
        for path, data in contents.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(data)
