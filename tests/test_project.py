"""Facts that stand in several files of the project are the same in all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import seglog
from tests.dist import supported

_ROOT: Final = Path(__file__).parents[1]


def _text(name: str) -> str:
    return (_ROOT / name).read_text()


def test_supported_versions_of_python_are_the_same_everywhere() -> None:
    versions = supported()
    assert re.findall(r'requires-python = ">=(.*)"', _text("pyproject.toml")) == versions[:1]
    assert re.findall(r"PYTHON \?= python(.*)", _text("Makefile")) == versions[:1]
    assert re.findall(r'"(3\.\d+)"', _text(".github/workflows/ci.yml")) == versions
    assert set(re.findall(r"FROM python:(.*)-slim", _text("deploy/Dockerfile"))) == {versions[-1]}
    for page in ("README.md", "docs/quickstart.md"):
        assert re.findall(r"Python (3\.\d+) to (3\.\d+)", _text(page)) == [(versions[0], versions[-1])]


def test_version_is_the_same_in_the_package_and_the_project() -> None:
    assert re.findall(r'^version = "(.*)"', _text("pyproject.toml"), re.MULTILINE) == [seglog.__version__]


def test_every_lock_pins_what_the_lock_pins() -> None:
    def pins(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==(\S+)", _text(name), re.MULTILINE))

    locked = pins("requirements.lock")
    for name in ("deploy/requirements.lock", "demo/first.lock", "demo/spark.lock", "docs_site/requirements.lock"):
        assert {key: pin for key, pin in pins(name).items() if locked.get(key, pin) != pin} == {}


def test_what_ci_runs_is_in_the_makefile() -> None:
    called = re.findall(r"^make ([\w-]+)$", _text(".ci/run"), re.MULTILINE)
    assert called
    assert [target for target in called if f"\n{target}:" not in _text("Makefile")] == []


def test_windows_is_refused_in_one_sentence() -> None:
    program = "import sys; sys.platform = 'win32'; import seglog"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: seglog runs on Linux and macOS, not on Windows")
