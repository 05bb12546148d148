"""Products by name and version from Maven Central, PyPI and npm, each fetched once into the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.kafka.jars import cache_dir, copy_jars, made_once

__all__ = ["jars", "java_app", "npm_modules", "python_packages"]

_HERE: Final = Path(__file__).parent
_SECONDS: Final = 900


def jars(product: str) -> Path:
    """The directory with the jars of ``poms/<product>.xml``."""
    pom = _HERE / "poms" / f"{product}.xml"
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    return made_once(cache_dir() / "ecosystem" / f"{product}-{digest}", lambda target: copy_jars(pom, target))


def java_app(product: str) -> str:
    """A class path: ``java/<product>``, compiled, and the product's jars."""
    sources = sorted((_HERE / "java" / product).glob("*.java"))
    path = f"{jars(product)}/*"
    digest = hashlib.sha256(path.encode() + b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = made_once(
        cache_dir() / "ecosystem" / f"{product}-classes-{digest}",
        lambda target: _run(["javac", "-cp", path, "-d", str(target), *map(str, sources)]),
    )
    return f"{classes}{os.pathsep}{path}"


def python_packages(*pins: str) -> Path:
    """A directory for PYTHONPATH with these packages and their dependencies."""
    name = hashlib.sha256(" ".join(pins).encode()).hexdigest()[:16]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target"]
    return made_once(
        cache_dir() / "ecosystem" / f"{pins[0].partition('==')[0]}-{name}",
        lambda target: _run([*pip, str(target), *pins]),
    )


def npm_modules(*packages: str) -> Path:
    """A directory whose ``node_modules`` has these packages, each as ``name@version``."""
    name = "+".join(packages).replace("/", "-")
    return made_once(
        cache_dir() / "ecosystem" / f"npm-{name}",
        lambda target: _run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(target), *packages]
        ),
    )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
