"""Every file that a Markdown page names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_PACKAGE: Final = _ROOT / "src" / "seglog"
_HOMES: Final = (
    _ROOT,
    _PACKAGE,
    _ROOT / "src",
    _ROOT / "tests",
    _ROOT / "tests" / "golden",
    _ROOT / "tests" / "ecosystem",
)
"""A page names paths from the root of the repository, and as a rule our modules from that of the package."""
_MADE: Final = ("build/", "dist/")
"""The directories that `make` writes."""
_SKIPPED: Final = frozenset((".venv", ".cache", "build", "dist", "node_modules", ".git"))
_CODE: Final = re.compile(r"`([^`\n]+)`")
_PATH: Final = re.compile(r"[\w.*/-]+")
_ATTRIBUTE: Final = re.compile(r"([\w/]+)\.\w+(?:\.\w+)*")
"""A name in a module, such as `storage/log/log.Log.append`."""
_SUFFIXES: Final = (".py", ".md", ".toml", ".xml", ".java", ".js", ".mjs", ".go")


def _pages() -> list[Path]:
    return sorted(path for path in _ROOT.rglob("*.md") if not _SKIPPED & set(path.relative_to(_ROOT).parts))


def _top_names() -> set[str]:
    """The first parts of paths that are ours: a page also names directories of Kafka and of users."""
    homes = (_ROOT, _PACKAGE)
    return {path.name for home in homes for path in home.iterdir() if path.is_dir()} - _SKIPPED - {"seglog"}


def _named(text: str) -> Iterator[str]:
    tops = _top_names()
    for match in _CODE.finditer(text):
        word = match[1].split("::")[0]
        if _PATH.fullmatch(word) and not word.startswith(_MADE):
            has_home = "/" in word and word.split("/")[0] in tops
            if has_home or (word.endswith(_SUFFIXES) and not word.startswith((".", "*"))):
                yield word


@pytest.mark.parametrize("page", [str(path.relative_to(_ROOT)) for path in _pages()])
def test_every_path_in_a_page_exists(page: str) -> None:
    """A path that does not begin at the root may begin anywhere: a row of a table names the package once."""
    text = re.sub(r"```.*?```", "", (_ROOT / page).read_text(), flags=re.DOTALL)
    homes = (*_HOMES, (_ROOT / page).parent)
    roots = {path.name for path in _ROOT.iterdir()}
    missing = [
        word
        for word in dict.fromkeys(_named(text))
        if not any(any(home.glob(word.rstrip("/"))) for home in homes)
        and not (word.split("/")[0] not in roots and any(_ROOT.glob(f"[!.]*/**/{word.rstrip('/')}")))
        and not ((name := _ATTRIBUTE.fullmatch(word)) and (_PACKAGE / f"{name[1]}.py").exists())
    ]
    assert not missing
