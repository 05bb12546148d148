"""The archive: its launcher runs elsewhere, and says what is wrong where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import pytest

from seglog.spark.runtime.installed_packages import InstalledFile
from seglog.spark.runtime.python_archive import ArchiveContents, PythonArchive, launcher, write_archive

VERSION: Final = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def made(tmp_path: Path) -> PythonArchive:
    """With one module, and one file of compiled loops."""
    (tmp_path / "module.py").write_text("import os; print(os.environ['NUMBA_CACHE_DIR'], os.environ['NUMBA_CPU_NAME'])")
    (tmp_path / "loops" / "records").mkdir(parents=True)
    (tmp_path / "loops" / "records" / "x.nbi").write_bytes(b"x")
    contents = ArchiveContents([InstalledFile(str(tmp_path / "module.py"), "room/module.py")], {"room": "1.0"})
    return write_archive(str(tmp_path / "it's.tar.gz"), contents, str(tmp_path / "loops"))


def unpack(made: PythonArchive, directory: Path) -> Path:
    """As an executor does; the launcher's path."""
    with tarfile.open(made.path) as archive:
        archive.extractall(directory, filter="data")
    return directory / "bin" / "python"


def run(python: Path | str, *arguments: str, path: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *arguments], env={"PATH": path, **more}, cwd=cwd, capture_output=True, text=True, check=False
    )


def bin_with(directory: Path, **programs: str) -> str:
    """A PATH with the tools of the launcher and scripts of these names."""
    directory.mkdir()
    for tool in ("cp", "dirname", "hostname", "mktemp", "sh", "uname"):
        (directory / tool).symlink_to(next(Path(p, tool) for p in os.defpath.split(":") if Path(p, tool).exists()))
    for name, text in programs.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    return str(directory)


def test_an_executor_runs_its_own_python_with_the_packages(made: PythonArchive, tmp_path: Path) -> None:
    where = tmp_path / "some where"
    unpack(made, where / "seglog")
    assert (where / "seglog" / "cache" / "records" / "x.nbi").read_bytes() == b"x"
    path = bin_with(tmp_path / "bin", **{VERSION: f'exec "{sys.executable}" "$@"'})
    done = run("./seglog/bin/python", "-m", "room.module", path=path, cwd=where, PYTHONPATH="/of/spark")
    assert (done.stdout, done.stderr) == (f"{where}/seglog/cache generic\n", "")
    shown = "import sys; print([p for p in sys.path if p in sys.argv])"
    lib = f"{where}/seglog/lib"
    done = run("./seglog/bin/python", "-c", shown, lib, "/of/spark", path=path, cwd=where, PYTHONPATH="/of/spark")
    assert done.stdout == f"{[lib, '/of/spark']}\n"
    assert made.unpack == f"""mkdir seglog && tar -xzf '{tmp_path}/it'"'"'s.tar.gz' -C seglog"""
    assert made.spark_submit.startswith("PYSPARK_PYTHON=./seglog/bin/python spark-submit --archives ")
    assert made.spark_submit.endswith("#seglog' --conf spark.pyspark.python=./seglog/bin/python")


def test_loops_of_another_user_are_copied(made: PythonArchive, tmp_path: Path) -> None:
    """As in the shared cache of YARN: seglog runs cached code only if this user wrote it."""
    unpack(made, tmp_path / "seglog")
    if os.getuid() == 0:
        os.chown(tmp_path / "seglog" / "cache", 65534, 65534)
    else:
        (tmp_path / "seglog" / "cache").chmod(0o500)
    path = bin_with(tmp_path / "bin", **{VERSION: f'exec "{sys.executable}" "$@"'})
    done = run("./seglog/bin/python", "-m", "room.module", path=path, cwd=tmp_path)
    cache = Path(done.stdout.split()[0])
    assert cache.parent == tmp_path
    assert (cache / "records" / "x.nbi").read_bytes() == b"x"


def test_another_version_is_an_error_with_all_that_was_found(made: PythonArchive, tmp_path: Path) -> None:
    python = unpack(made, tmp_path / "u")
    path = bin_with(tmp_path / "bin", python3="echo 3.6")
    done = run(python, path=path, cwd=tmp_path)
    assert done.returncode == 1
    assert f"the archive is for Python {VERSION[6:]}; python3 is 3.6; install it, or set SEGLOG_PYTHON" in done.stderr
    done = run(python, path=bin_with(tmp_path / "none"), cwd=tmp_path)
    assert f"the archive is for Python {VERSION[6:]}; no python here; install it" in done.stderr
    done = run(python, "-c", "print(1)", path=path, cwd=tmp_path, SEGLOG_PYTHON=sys.executable)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_another_machine_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "python"
    script.write_text(launcher().replace(os.uname().machine, "riscv"))
    script.chmod(0o755)
    done = run(script, path=os.environ["PATH"], cwd=tmp_path)
    assert done.returncode == 1
    assert f"the archive is for Linux riscv, this machine is Linux {os.uname().machine}" in done.stderr


def test_an_archive_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    contents = ArchiveContents([InstalledFile(str(tmp_path / "gone"), "gone")], {})
    with pytest.raises(FileNotFoundError):
        write_archive(str(tmp_path / "x.tar.gz"), contents, str(tmp_path / "loops"))
    assert list(tmp_path.iterdir()) == []
