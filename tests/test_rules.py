"""Rules of ARCHITECTURE.md that import-linter cannot hold: who opens files, who reads time, what a start may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seglog

_SOURCES = Path(__file__).parent.parent / "src"
_MODULES = sorted(_SOURCES.rglob("*.py"))
_FILE_CALLS = {"open", "os.open", "os.mkdir", "os.makedirs", "os.rename", "os.replace", "os.unlink", "os.remove"}
_FILE_DOORS = {
    "seglog/core/fs.py": "the door itself",
    "seglog/core/numba_cache.py": "where numba keeps its compiled code",
    "seglog/cli/output.py": "standard output, when whoever read it has gone",
    "seglog/spark/runtime/session.py": "standard error of the JVM while it starts",
}
_TIME_DOORS = {
    "seglog/core/clock.py": "the door itself",
}
_KAZOO_DOOR = "seglog/cluster/zookeeper_connection.py"
_COMPILER = "seglog/records/kafka_messages.py"
"""It compiles writers from Kafka's schemas, which are constants of ours."""
_NEVER = {"eval", "exec", "pickle", "marshal", "shelve"}


def _calls(tree: ast.AST) -> Iterator[str]:
    """Calls by a name, and of a module's function: only these are in the lists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name):
                    yield name
                case ast.Attribute(value=ast.Name(id=module), attr=name):
                    yield f"{module}.{name}"


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _name(path: Path) -> str:
    return path.relative_to(_SOURCES).as_posix()


@pytest.mark.parametrize("path", _MODULES, ids=_name)
def test_one_door_for_files_one_for_time_and_one_for_zookeeper(path: Path) -> None:
    tree = ast.parse(path.read_text())
    calls, imports = set(_calls(tree)), set(_imports(tree))
    if _name(path) not in _FILE_DOORS:
        assert sorted(calls & _FILE_CALLS) == []
    if _name(path) not in _TIME_DOORS:
        assert "time" not in imports
    if _name(path) != _KAZOO_DOOR:
        assert [name for name in imports if name.split(".")[0] == "kazoo"] == []
    assert sorted((calls | imports) & _NEVER) == (["exec"] if _name(path) == _COMPILER else [])


def test_an_engine_starts_without_the_extras(tmp_path: Path) -> None:
    program = (
        "import sys, seglog\n"
        "with seglog.open(sys.argv[1]) as directory:\n"
        "    directory.create_topic('t')\n"
        "    directory.log('t').append_records([seglog.NewRecord(b'v')])\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'pyspark', 'pandas', 'typer', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_small_read_needs_no_extra(tmp_path: Path) -> None:
    """`seglog.scan` hands out Arrow and costs three times as much CPU for one record."""
    program = (
        "import sys, seglog\n"
        "from seglog.cli.main import main\n"
        "with seglog.open(sys.argv[1], create=False) as directory:\n"
        "    assert [bytes(record.value) for record in directory.log('t').records()] == [b'v']\n"
        "    assert directory.log('t').offset_for_timestamp(0).offset == 0\n"
        "for command in (['ls', sys.argv[1]], ['dump', '--records', sys.argv[1] + '/t-0'], ['verify', sys.argv[1]]):\n"
        "    assert main(command) == 0, command\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'pyspark', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    with seglog.open(tmp_path / "log") as directory:
        directory.create_topic("t")
        directory.log("t").append_records([seglog.NewRecord(b"v")])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_doors_that_are_named_exist() -> None:
    assert [name for name in (*_FILE_DOORS, *_TIME_DOORS, _KAZOO_DOOR) if not (_SOURCES / name).exists()] == []
