"""Kafka's jars and our few Java classes, each made once into `.cache/` under the repository's root.

Two processes that ask at once (pytest-xdist, two terminals) meet at a lock file; what is in the cache was renamed into
place whole, so a process killed half way leaves nothing that looks finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

__all__ = [
    "BEFORE",
    "CURRENT",
    "OLD",
    "PREVIOUS",
    "KafkaVersion",
    "cache_dir",
    "class_path",
    "copy_jars",
    "java_classes",
    "kafka_libs",
    "made_once",
]

KafkaVersion = Literal["4.4.0", "4.3.0", "3.9.1", "2.8.2"]

CURRENT: KafkaVersion = "4.4.0"
"""The version whose bytes are ours to match."""
BEFORE: KafkaVersion = "4.3.0"
"""The version before it: its directories, clients and tools are tried as well."""
PREVIOUS: KafkaVersion = "3.9.1"
"""The last version before 4.0: its clients and tools are those that most people have."""
OLD: KafkaVersion = "2.8.2"
"""A version that still writes message formats 0 and 1."""

_HERE = Path(__file__).parent
_JAVA = _HERE / "java"
_MVN_SECONDS = 600
_JAVAC_SECONDS = 120


def cache_dir() -> Path:
    """`.cache` under the repository's root; git ignores it."""
    path = _HERE.parents[1] / ".cache"
    path.mkdir(exist_ok=True)
    return path


def kafka_libs(version: KafkaVersion) -> Path:
    """The directory with Kafka's jars, copied by Maven the first time (about 15 s).

    Raises RuntimeError, with Maven's own words, when Maven is missing or fails.
    """
    return made_once(
        cache_dir() / f"kafka-{version}" / "libs", lambda target: copy_jars(_HERE / f"pom-{version}.xml", target)
    )


def java_classes() -> Path:
    """Our Java sources compiled against the current Kafka (about 2 s, again only when a source changes)."""
    sources = sorted(_JAVA.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return made_once(cache_dir() / f"kafka-{CURRENT}" / f"classes-{digest}", lambda target: _compile(sources, target))


def class_path(version: KafkaVersion, *, with_ours: bool = False) -> str:
    """The class path for `java -cp`; `with_ours` puts our classes first. They are compiled against 4.4.0; those that
    use only its public client run with 3.9.1 and 4.3.0 as well."""
    libs = f"{kafka_libs(version)}/*"
    return f"{java_classes()}{os.pathsep}{libs}" if with_ours else libs


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """``target``, a directory that ``make`` fills the first time."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f"{target.name}.lock"):
        if not target.is_dir():
            unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
            try:
                make(unfinished)
                unfinished.rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def copy_jars(source: Path, target: Path) -> None:
    """The dependencies of the pom ``source``. RuntimeError, with Maven's words, if Maven is missing or fails."""
    # Maven puts its own files beside the pom, so it gets a copy outside the source tree.
    with tempfile.TemporaryDirectory() as scratch:
        pom = Path(shutil.copy(source, Path(scratch) / "pom.xml"))
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        _checked(["mvn", "-q", "-B", "-f", str(pom), *goal], _MVN_SECONDS)


def _compile(sources: list[Path], target: Path) -> None:
    libs = f"{kafka_libs(CURRENT)}/*"
    _checked(["javac", "-cp", libs, "-d", str(target), *map(str, sources)], _JAVAC_SECONDS)


def _checked(command: list[str], seconds: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError as missing:
        raise RuntimeError(f"{command[0]} is not installed: tests/interop needs a JDK 17 and Maven") from missing
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
