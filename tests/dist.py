"""``python -m tests.dist``: build the wheel and the sdist into ``dist/``, and try the wheel where it will be installed.

For each supported Python that this machine has, the wheel goes into a new virtual environment with its dependencies and
nothing else; there it must append, read, list and serve. Says which versions were tried; fails if none was.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_CLASSIFIER: Final = "Programming Language :: Python :: 3."
_BUILD: Final = """\
import sys
from setuptools.build_meta import build_sdist, build_wheel
into = sys.argv.pop()
build_sdist(into)
build_wheel(into)
"""
_TRIAL: Final = """\
import seglog
with seglog.open("data") as directory:
    directory.create_topic("t")
    log = directory.log("t")
    log.append_records([seglog.NewRecord(b"tea", key=b"ann")])
    assert [record.value for record in log.records()] == [b"tea"]
from seglog.testing import Broker
with Broker({"t": 1}) as broker:
    assert broker.bootstrap
"""


def supported() -> list[str]:
    """The versions of Python in the classifiers: ``["3.11", …]``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [f"3.{one.removeprefix(_CLASSIFIER)}" for one in project["classifiers"] if one.startswith(_CLASSIFIER)]


def build(into: Path) -> Path:
    """Build both distributions; returns the wheel."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # modules of earlier builds would be in the wheel, too
    into.mkdir()
    subprocess.run([sys.executable, "-c", _BUILD, into], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def try_wheel(wheel: Path, python: str) -> None:
    """Install ``wheel`` by ``python`` into a new environment and use it there; CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([python, "-m", "venv", directory], check=True)
        binaries = Path(directory) / "bin"
        subprocess.run([binaries / "pip", "install", "-q", "--disable-pip-version-check", wheel], check=True)
        subprocess.run([binaries / "python", "-c", _TRIAL], cwd=directory, check=True)
        for command in ("--version", "ls data", "verify data"):
            subprocess.run([binaries / "seglog", *command.split()], cwd=directory, check=True)


def _is_there(python: str) -> bool:
    """Whether the command runs; a shim of a version manager may exist without its Python."""
    return bool(shutil.which(python)) and subprocess.run([python, "-c", ""], check=False).returncode == 0


def main() -> int:
    wheel = build(ROOT / "dist")
    tried = [version for version in supported() if _is_there(f"python{version}")]
    for version in tried:
        print(f"Python {version}: {wheel.name}", flush=True)
        try_wheel(wheel, f"python{version}")
    missing = [version for version in supported() if version not in tried]
    print(f"tried with Python {', '.join(tried)}" + (f"; not installed here: {', '.join(missing)}" if missing else ""))
    return 0 if tried else 1


if __name__ == "__main__":
    sys.exit(main())
