"""The compiled loops' cache: found again, in the next best place where one cannot be written, and never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import seglog.core
from seglog.core.numba_cache import choose_cache_directory
from seglog.records import batch_kernels, column_kernels, encode_kernels, intrinsics

SOURCE = Path(next(iter(seglog.core.__path__))).parent
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from numba.core import config
before = config.CACHE_DIR
from seglog.records import batch_kernels, intrinsics
from seglog.records.batch_tables import byte_array
assert intrinsics.__file__.startswith({root!r})
assert config.CACHE_DIR == before
(directory,) = set(intrinsics._cache_directories.values())
print(intrinsics.crc32c(byte_array(b"123456789" * 10), 0, 9), directory)
"""
_LOOP = """
from seglog.records.intrinsics import kernel

@kernel
def add(a, b):
    return a + b
"""


def run(root: Path, **environment: str) -> tuple[int, str]:
    """The CRC-32C of "123456789" as a process with the package at ``root`` computes it, and its cache directory."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA", "PYTHON", "XDG"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(root=str(root))],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    crc, directory = done.stdout.split()
    return int(crc), directory


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package without caches."""
    root = tmp_path / "lib"
    for part in ("core", "records"):
        shutil.copytree(SOURCE / part, root / "seglog" / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE / "__init__.py", root / "seglog")
    return root


def test_the_cache_lies_where_it_can_be_written(package: Path, tmp_path: Path) -> None:
    """Files stand where directories would have to be, which stops even root."""
    home = tmp_path / "home"
    home.mkdir()
    beside = package / "seglog" / "records" / "__pycache__"
    assert run(package, HOME=str(home)) == (0xE3069283, str(next(beside.glob("seglog-numba-*"))))
    shutil.rmtree(beside)
    beside.write_text("")
    assert run(package, HOME=str(home), PYTHONDONTWRITEBYTECODE="1")[1].startswith(str(home / ".cache"))
    crc, directory = run(package, HOME="/dev/null", TMPDIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    assert crc == 0xE3069283
    assert Path(directory).parent == tmp_path
    chosen = tmp_path / "chosen"
    assert run(package, NUMBA_CACHE_DIR=str(chosen), PYTHONDONTWRITEBYTECODE="1")[1].startswith(str(chosen))


def test_a_cpu_without_the_crc_instruction_gets_the_same_checksum(package: Path, tmp_path: Path) -> None:
    assert run(package, HOME=str(tmp_path), NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")[0] == 0xE3069283


def test_a_cache_moves_with_its_package(package: Path, tmp_path: Path) -> None:
    """As in an archive for Spark: unpacked elsewhere, at another time, nothing is compiled again."""
    (package / "seglog" / "records" / "loop.py").write_text(_LOOP)
    program = "from seglog.records.loop import add; print(add(1, 2), sum(add.stats.cache_hits.values()))"

    def added(root: Path) -> str:
        environment = {"PYTHONPATH": str(root), "HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert added(package) == "3 0"
    moved = tmp_path / "elsewhere"
    shutil.copytree(package, moved, copy_function=shutil.copyfile)
    assert added(moved) == "3 1"
    (moved / "seglog" / "records" / "loop.py").write_text(_LOOP.replace("a + b", "a + b + 1"))
    assert added(moved) == "4 0"


def test_a_cpu_that_is_named_with_the_crc_instruction_uses_it() -> None:
    program = "from seglog.records import intrinsics; print(intrinsics.crc32c is intrinsics.crc32c_by_table)"
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic"}
    for features, by_table in (("", "True"), ("+crc32,+popcnt,+sse4.2", "False")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "NUMBA_CPU_FEATURES": features, "PYTHONPATH": str(SOURCE.parent)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == by_table


def test_the_directory_changes_with_the_sources(tmp_path: Path) -> None:
    sources = [str(tmp_path / name) for name in ("intrinsics.py", "batch_kernels.py")]
    for source in sources:
        Path(source).write_text("1")
    first = choose_cache_directory(sources)
    assert choose_cache_directory(sources) == first
    assert choose_cache_directory(sources[:1]) != first
    Path(sources[1]).write_text("22")
    assert choose_cache_directory(sources) != first
    assert oct(os.stat(first).st_mode & 0o777) == "0o700"


def test_cache_key_of_a_kernel_covers_the_files_it_calls() -> None:
    def names(function: Any) -> set[str]:
        found = intrinsics._sources(function.py_func, set())
        return {Path(path).name for path in found}

    assert names(batch_kernels.walk) == {"batch_kernels.py", "intrinsics.py"}
    assert names(column_kernels.index_records) == {"column_kernels.py", "batch_kernels.py", "intrinsics.py"}
    assert names(encode_kernels.write_batches) == {"encode_kernels.py", "intrinsics.py"}
