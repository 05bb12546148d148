"""The page's files: small, in the wheel, and nothing that would let a record become markup or reach a network."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import seglog.console.server
from seglog.console.server import static_files

_ROOT = Path(__file__).parents[2]
_STATIC = Path(seglog.console.server.__file__).parent / "static"
_FILES = sorted(_STATIC.iterdir())
_MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc")


def test_the_page_is_small_and_in_the_wheel() -> None:
    patterns = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["seglog"]
    for file in _FILES:
        assert any(fnmatch(f"console/static/{file.name}", pattern) for pattern in patterns), file
    assert sum(file.stat().st_size for file in _FILES) < 500_000
    assert sorted(static_files()) == sorted("/" if one.name == "index.html" else f"/{one.name}" for one in _FILES)


@pytest.mark.parametrize("file", _FILES, ids=lambda one: one.name)
def test_no_file_makes_markup_of_text_or_names_another_host(file: Path) -> None:
    text = file.read_text()
    assert _MARKUP.search(text) is None
    assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}
    assert "@import" not in text


def test_the_page_has_no_inline_code() -> None:
    page = (_STATIC / "index.html").read_text()
    assert re.search(r"<script(?![^>]*\bsrc=)", page) is None
    assert re.search(r"\son\w+=|\sstyle=|<style|javascript:", page) is None
    for name in re.findall(r'(?:src|href)="/([^"]+)"', page):
        assert (_STATIC / name).is_file()


def test_modules_import_files_that_exist() -> None:
    for file in _FILES:
        for name in re.findall(r'from "\./([^"]+)"', file.read_text()):
            assert (_STATIC / name).is_file(), (file.name, name)
