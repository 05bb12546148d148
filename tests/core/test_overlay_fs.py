"""An overlay behaves as the disk below would, and never changes it: random operations on both, side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.fs import Fs, OsFs, remove_tree, write_atomically
from seglog.core.overlay_fs import OverlayFs
from tests.cases import case, is_long
from tests.kit.manual_clock import ManualClock

NAMES = ("a", "b", "d/a", "d/b", "e/a", "e/f/a")


def _make(root: Path) -> None:
    for number, name in enumerate(("a", "d/a", "d/b", "e/f/a")):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes([65 + number]) * (10 * number))


def _tree(fs: Fs, path: str) -> dict[str, bytes | None]:
    """All files with their contents, and directories (None)."""
    found: dict[str, bytes | None] = {}
    for name in fs.listdir(path):
        child = os.path.join(path, name)
        if fs.stat(child).is_dir:
            found[name] = None
            found |= {f"{name}/{one}": content for one, content in _tree(fs, child).items()}
        else:
            found[name] = fs.read(child)
            assert len(fs.read(child)) == fs.stat(child).size == fs.open(child, write=False).size()
    return found


def _step(fs: Fs, root: str, random: Random) -> object:
    """One operation; its result, or the kind of its error."""
    path, other = (os.path.join(root, random.choice(NAMES)) for _ in range(2))
    data, position = random.randbytes(random.randrange(9)), random.randrange(30)
    kind = random.randrange(11)
    try:
        if kind == 0:
            fs.write(path, data)
        elif kind == 1:
            fs.open(path, create=random.random() < 0.5).pwrite(data, position)
        elif kind == 2:
            fs.open(path).truncate(position)
        elif kind == 3:
            fs.unlink(path)
        elif kind == 4 and fs.exists(path) and fs.exists(os.path.dirname(other)):
            fs.rename(path, other)
        elif kind == 5:
            directory = os.path.join(root, random.choice(["d", "e", "g"]))
            remove_tree(fs, directory)
        elif kind == 6:
            fs.mkdir(os.path.join(root, random.choice(["d", "e", "g"])))
        elif kind == 7 and fs.exists(os.path.join(root, "d")) and not fs.exists(os.path.join(root, "h")):
            fs.rename(os.path.join(root, "d"), os.path.join(root, "h"))
        elif kind == 8:
            write_atomically(fs, os.path.join(root, "a"), data)
        elif kind == 9:
            return fs.open(path, write=False).pread(position, random.randrange(20))
        else:
            return fs.exists(path), fs.listdir(root)
    except OSError as error:
        return type(error)
    return None


@settings(max_examples=2000 if is_long() else 40)
@given(st.integers(0, 2**32))
def test_an_overlay_does_what_the_disk_would_do_and_leaves_it_alone(seed: int) -> None:
    case()
    with TemporaryDirectory() as scratch:
        below, beside = Path(scratch, "below"), Path(scratch, "beside")
        _make(below)
        shutil.copytree(below, beside)
        before = _tree(OsFs(), str(below))
        overlay = OverlayFs(OsFs(), ManualClock())
        for number in range(25):
            here = _step(overlay, str(below), Random(seed + number))
            there = _step(OsFs(), str(beside), Random(seed + number))
            assert here == there
            assert _tree(overlay, str(below)) == _tree(OsFs(), str(beside))
        assert _tree(OsFs(), str(below)) == before


def test_nothing_of_an_overlay_is_mapped_or_locked(tmp_path: Path) -> None:
    overlay = OverlayFs(OsFs(), ManualClock())
    overlay.lock(str(tmp_path / ".lock")).release()
    overlay.allocate(str(tmp_path / "x"), 100)
    overlay.set_mtime(str(tmp_path / "x"), 7)
    overlay.fsync_dir(str(tmp_path))
    assert (overlay.stat(str(tmp_path / "x")).size, overlay.stat(str(tmp_path / "x")).mtime_ms) == (100, 7)
    assert overlay.space(str(tmp_path / "none" / "x")).total == OsFs().space(str(tmp_path)).total
    with pytest.raises(OSError, match="cannot be mapped"):
        overlay.map(str(tmp_path / "x"))
    assert subprocess.run(["ls", "-A", tmp_path], capture_output=True, check=True).stdout == b""
