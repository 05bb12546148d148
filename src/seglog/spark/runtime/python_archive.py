"""A Python environment in one file, for executors that have nothing but Spark and a Python of the same version.

Spark unpacks the archive into the working directory of each executor (``--archives FILE#seglog``):

    bin/python    a shell script: runs the executor's own Python with the packages below
    lib/          seglog and what it needs, as in site-packages
    cache/        the compiled loops, for any CPU of this architecture

Wheels with native code cannot be imported from a zip, so ``--py-files`` cannot carry numpy, numba and pyarrow. A copied
venv has symbolic links to the interpreter of the machine that made it, and the paths of that machine in ``pyvenv.cfg``;
the script finds its own place, checks the version, and says what is wrong.
"""

from __future__ import annotations

import io
import os
import platform
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from seglog.core.errors import SeglogError
from seglog.core.fs import OsFs
from seglog.spark.runtime.installed_packages import (
    SEGLOG,
    InstalledFile,
    distribution_files,
    needed_distributions,
    seglog_files,
)

NAME: Final = "seglog"
"""The directory into which executors unpack the archive."""
PYTHON: Final = f"./{NAME}/bin/python"
_LEVEL: Final = 3
"""Of gzip. Native libraries are most of the archive; a higher level takes minutes for a few per cent."""
_EXTRAS_OF_SPARK: Final = ("all", "java", "spark")
"""Extras that executors have from Spark."""

_LAUNCHER: Final = """\
#!/bin/sh
# Made by `seglog spark package`: the Python of this machine, with the packages of this archive.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
fail() {{ echo "seglog: $(hostname): $1" >&2; exit 1; }}
[ "$(uname -sm)" = "{system}" ] || fail "the archive is for {system}, this machine is $(uname -sm)"
tell='import sys; print("%d.%d" % sys.version_info[:2])'
for python in "${{SEGLOG_PYTHON:-python{version}}}" python{version} python3 python; do
    found=$("$python" -c "$tell" 2>/dev/null) || continue
    if [ "$found" = "{version}" ]; then
        cache=$here/cache
        # numba runs code only from a directory that is this user's and can be written. YARN shares archives.
        if ! [ -w "$cache" ] || ! [ -O "$cache" ]; then
            cache=$(mktemp -d "$PWD/seglog-loops.XXXXXX" 2>/dev/null || mktemp -d) || fail "no directory can be made"
            cp -r "$here/cache/." "$cache" || fail "$here/cache cannot be copied to $cache"
        fi
        export PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1
        export NUMBA_CACHE_DIR="$cache" NUMBA_CPU_NAME="{cpu}" NUMBA_CPU_FEATURES="{features}"
        exec "$python" "$@"
    fi
    seen="$seen $python is $found;"
done
fail "the archive is for Python {version};${{seen:- no python here;}} install it, or set SEGLOG_PYTHON to its path"
"""


class PythonArchive(NamedTuple):
    """The archive: its size in bytes, and the names and versions of the distributions inside."""

    path: str
    size: int
    python: str
    system: str
    packages: dict[str, str]

    @property
    def spark_submit(self) -> str:
        """The beginning of a command line by which the driver and the executors run the archive.

        The setting is for Kubernetes, which makes the variable of it. Elsewhere Spark finds data sources with the
        interpreter that the variable names, whatever the setting says.
        """
        words = ["spark-submit", "--archives", f"{self.path}#{NAME}", "--conf", f"spark.pyspark.python={PYTHON}"]
        return f"PYSPARK_PYTHON={PYTHON} {shlex.join(words)}"

    @property
    def unpack(self) -> str:
        """The command for the directory of a driver in client mode. Spark unpacks archives for executors only."""
        return f"mkdir {NAME} && tar -xzf {shlex.quote(self.path)} -C {NAME}"


def portable_cpu() -> tuple[str, str]:
    """LLVM's name and features of a CPU that every machine of this architecture has.

    SSE 4.2 (2008) brings the instruction for CRC-32C. Loops compiled for this machine's own CPU would be compiled anew
    on every other model.
    """
    return "generic", "+crc32,+popcnt,+sse4.2" if platform.machine() == "x86_64" else ""


def launcher() -> str:
    """The text of ``bin/python``."""
    cpu, features = portable_cpu()
    return _LAUNCHER.format(version=_version(), system=_system(), cpu=cpu, features=features)


def _version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _system() -> str:
    return f"{os.uname().sysname} {os.uname().machine}"


def compile_loops(directory: str) -> None:
    """Compile all loops for `portable_cpu` into ``directory`` (half a minute)."""
    cpu, features = portable_cpu()
    chosen = {"NUMBA_CACHE_DIR": directory, "NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **chosen}
    done = subprocess.run(
        [sys.executable, "-m", "seglog.worker", "warm"], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SeglogError(f"the loops cannot be compiled: {done.stderr.strip()}")


class ArchiveContents(NamedTuple):
    """The files below ``lib/``, and the versions of their distributions by name."""

    files: list[InstalledFile]
    packages: dict[str, str]


def archive_contents(extras: Sequence[str] = (), packages: Sequence[str] = ()) -> ArchiveContents:
    """seglog with ``extras``, the installed ``packages``, and all that they require.

    Raises `MissingExtraError` if something is not installed, and `SeglogError` for extras that seglog does not have or
    that executors do not need.
    """
    for extra in extras:
        if extra in _EXTRAS_OF_SPARK:
            raise SeglogError(f"extra {extra!r} is not for executors: they have Spark and Java already")
    wanted = ",".join(["fast", *extras])
    distributions = needed_distributions([f"{SEGLOG}[{wanted}]", *packages])
    files: list[InstalledFile] = []
    for one in distributions:
        files += seglog_files(one) if one.name == SEGLOG else distribution_files(one)
    return ArchiveContents(files, {one.name: one.version for one in distributions})


def make_archive(path: str, extras: Sequence[str] = (), packages: Sequence[str] = ()) -> PythonArchive:
    """Pack the contents (`archive_contents`) and the compiled loops into a new ``path``; a minute.

    Raises `SeglogError` if the file exists. After an error there is no file.
    """
    if OsFs().exists(path):
        raise SeglogError(f"{path} exists: give another name, or remove it")
    if not path.endswith((".tar.gz", ".tgz")):
        raise SeglogError(f"{path}: Spark recognizes an archive by its suffix, .tar.gz or .tgz")
    contents = archive_contents(extras, packages)
    with tempfile.TemporaryDirectory(prefix="seglog-package-") as directory:
        compile_loops(directory)
        return write_archive(path, contents, directory)


def write_archive(path: str, contents: ArchiveContents, loops: str) -> PythonArchive:
    """Write ``bin/python``, the contents and the directory ``loops``. The file gets its name when it is complete."""
    fs = OsFs()
    unfinished = f"{path}.unfinished"
    try:
        _write(unfinished, contents.files, list(_below(loops)))
        fs.rename(unfinished, path)
    except BaseException:
        if fs.exists(unfinished):
            fs.unlink(unfinished)
        raise
    return PythonArchive(path, fs.stat(path).size, _version(), _system(), contents.packages)


def _below(directory: str) -> Iterator[InstalledFile]:
    for where, _, files in os.walk(directory):
        for file in files:
            whole = os.path.join(where, file)
            yield InstalledFile(whole, os.path.relpath(whole, directory))


def _write(path: str, libraries: Sequence[InstalledFile], loops: Sequence[InstalledFile]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=_LEVEL) as archive:
        script = launcher().encode()
        head = tarfile.TarInfo("bin/python")
        head.size, head.mode = len(script), 0o755
        archive.addfile(head, io.BytesIO(script))
        for room, files in (("lib", libraries), ("cache", loops)):
            for file in files:
                archive.add(os.path.realpath(file.path), f"{room}/{file.name}", filter=_without_owner)


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o644
    return entry
