"""kcat, which is nowhere but in distributions' packages: one that is installed, or Debian's, unpacked into the cache.

Nothing is installed for that, and nobody needs to be root: apt-get fetches the packages, dpkg-deb unpacks them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.kafka.jars import cache_dir, made_once

# With the libraries of its own; what else it needs is on every Debian.
_PACKAGES = ("kcat", "librdkafka1", "libyajl2", "libsasl2-2")
_SECONDS = 120


def kcat(bootstrap: str, *arguments: str, stdin: bytes = b"") -> str:
    """The output of kcat. Raises RuntimeError with kcat's own message if it fails."""
    command, environment = kcat_command()
    done = subprocess.run(
        [*command, "-b", bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        timeout=_SECONDS,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"kcat {' '.join(arguments)} ended with {done.returncode}: {done.stderr.decode()}")
    return done.stdout.decode()


def kcat_command() -> tuple[list[str], dict[str, str]]:
    """The command and its environment."""
    installed = shutil.which("kcat")
    if installed is not None:
        return [installed], dict(os.environ)
    root = made_once(cache_dir() / "clients" / "kcat", _fetch)
    libraries = ":".join(str(path) for path in (root / "usr" / "lib").iterdir() if path.is_dir())
    return [str(root / "usr" / "bin" / "kcat")], {**os.environ, "LD_LIBRARY_PATH": libraries}


def _fetch(target: Path) -> None:
    if shutil.which("apt-get") is None:
        raise RuntimeError("kcat is not installed, and there is no apt-get to fetch it: install the package kcat")
    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch) / "lists"
        (state / "partial").mkdir(parents=True)
        # Lists of our own, if there are none of the system's: they need no root.
        options: list[str] = []
        if subprocess.run(["apt-cache", "show", "kcat"], capture_output=True, check=False).returncode:
            options = ["-o", f"Dir::State::lists={state}", "-o", f"Dir::Cache={scratch}", "-o", "APT::Sandbox::User="]
            _checked(["apt-get", *options, "-q", "update"], scratch)
        _checked(["apt-get", *options, "-q", "download", *_PACKAGES], scratch)
        for package in Path(scratch).glob("*.deb"):
            _checked(["dpkg-deb", "-x", str(package), str(target)], scratch)


def _checked(command: list[str], cwd: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}; install the package kcat: {done.stderr[-2000:]}"
        )
