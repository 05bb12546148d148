"""Plant the faults of `tests/faults.toml` in a copy of the repository, and check that their tests find them.

    python -m tests.plant [WORD…]     all faults, or those with one of the words in their name, file or tests
    python -m tests.plant --write     rewrite tests/faults.md

A fault is an exact piece of the source and its replacement. Its tests run before any fault is planted, and must pass;
with the fault in place each of them must fail. `tests/test_plant.py` compares the list with the sources.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from seglog.core.clock import SystemClock

ROOT: Final = Path(__file__).parent.parent
LIST: Final = ROOT / "tests" / "faults.toml"
TABLE: Final = ROOT / "tests" / "faults.md"
_SECONDS: Final = 200
"""A test that takes longer with a fault in place hangs: it is stopped, and the fault counts as found."""
_PASSED, _FAILED = 0, 1
"""Exit codes of pytest; with any other code the test did not run."""
_HEAD: Final = """\
# Planted faults, and the test that finds each

Each fault was planted in a copy of the repository, where the named test failed; without the fault it passes.
`python -m tests.plant` repeats this, and `python -m tests.plant --write` writes this page from `tests/faults.toml`.

| Fault | Where | Effect | Found by |
|---|---|---|---|
"""


class Fault(NamedTuple):
    """``old`` occurs once in ``file``, a path in the repository; ``tests`` are pytest's node ids."""

    name: str
    file: str
    effect: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_faults() -> list[Fault]:
    return [
        Fault(one["name"], one["file"], one["effect"], one["old"], one["new"], tuple(one["tests"]))
        for one in tomllib.loads(LIST.read_text())["fault"]
    ]


def table(faults: Iterable[Fault]) -> str:
    """The text of `tests/faults.md`."""
    rows = []
    for fault in faults:
        tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in fault.tests)
        rows.append(f"| {fault.name} | `{fault.file.removeprefix('src/seglog/')}` | {fault.effect} | {tests} |\n")
    return _HEAD + "".join(rows)


def names_of_tests(file: Path) -> set[str]:
    """Functions, classes and what is made of a state machine (``TestLog = Machine.TestCase``), by the source's text."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if name.lower().startswith("test")}


def copy_repository(target: Path) -> None:
    """The files that git knows of or would take, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


class Outcome(NamedTuple):
    """The exit code of pytest, None if it did not end in time, and its output."""

    code: int | None
    text: str


def run_tests(directory: Path, tests: Sequence[str], *, seconds: int = _SECONDS) -> Outcome:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(directory / "src"), str(directory))),
        "PYTHONDONTWRITEBYTECODE": "1",  # two versions of a file in the same second would share their bytecode
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, f"not done after {seconds} seconds\n")
    return Outcome(done.returncode, done.stdout + done.stderr)


def plant(fault: Fault, directory: Path) -> str:
    """Put the fault in, run its tests, take it out: the verdict."""
    path = directory / fault.file
    source = path.read_text()
    if source.count(fault.old) != 1:
        return "the old text is gone" if fault.old not in source else "the old text is there more than once"
    found = path.stat()
    path.write_text(source.replace(fault.old, fault.new))
    try:
        verdicts = {test: run_tests(directory, [test]).code for test in fault.tests}
    finally:
        path.write_text(source)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    missed = [test for test, code in verdicts.items() if code == _PASSED]
    broken = [test for test, code in verdicts.items() if code not in (_PASSED, _FAILED, None)]
    if missed:
        return f"NOT CAUGHT by {', '.join(missed)}"
    return f"NOT RUN: {', '.join(broken)}" if broken else "caught"


def main(words: Sequence[str]) -> int:
    faults = read_faults()
    if list(words) == ["--write"]:
        TABLE.write_text(table(faults))
        return 0
    chosen = [
        fault
        for fault in faults
        if not words or any(word in text for word in words for text in (fault.name, fault.file, *fault.tests))
    ]
    clock, misses = SystemClock(), 0
    with tempfile.TemporaryDirectory(prefix="seglog-plant-") as temporary:
        directory = Path(temporary)
        copy_repository(directory)
        tests = sorted({test for fault in chosen for test in fault.tests})
        sound = run_tests(directory, tests, seconds=_SECONDS * len(tests))
        if sound.code != _PASSED:
            print(f"{sound.text}the tests do not pass without a fault")
            return 1
        for fault in chosen:
            started = clock.monotonic()
            verdict = plant(fault, directory)
            misses += verdict != "caught"
            print(f"{verdict}: {fault.name} ({fault.file}, {clock.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(chosen) - misses} of {len(chosen)} caught")
    return 1 if misses or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
