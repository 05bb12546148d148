"""The frame around all commands: exit codes, one clear line on errors, a fast start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from seglog.cli.main import COMMANDS
from seglog.records.encoding import NewRecord, encode_batch
from tests.cli.logs import write_log
from tests.cli.run import Run, seglog_command, start_seglog


def test_help_lists_the_commands_and_no_argument_is_help(run: Run) -> None:
    with_help, without = run("--help"), run()
    assert (with_help.code, without.code) == (0, 0)
    assert with_help.text == without.text
    for command in COMMANDS:
        assert f"\n  {command} " in with_help.text


def test_each_command_has_help(run: Run) -> None:
    for command in COMMANDS:
        ran = run(command, "--help")
        assert ran.code == 0
        assert f"Usage: seglog {command}" in ran.text
        assert "--json" in ran.text


def test_version(run: Run) -> None:
    ran = run("--version")
    assert ran.code == 0
    assert ran.text.startswith("seglog ")


def test_usage_errors_are_one_line_and_exit_2(run: Run, tmp_path: Path) -> None:
    for arguments in (
        ("nothing",),
        ("dump",),
        ("dump", "--no-such-option"),
        ("dump", "--max-bytes", "many", "x.log"),
        ("dump", "--isolation-level", "serializable", "x.log"),
        ("dump", "--remote-log-metadata-decoder", "x.log"),
        ("dump", "--value-decoder-class", "com.example.Decoder", "x.log"),
        ("dump", tmp_path / "none.log"),
        ("find", tmp_path),
        ("ls", tmp_path / "none"),
    ):
        ran = run(*arguments)
        assert ran.code == 2, arguments
        assert ran.err.startswith("seglog: "), arguments
        assert ran.err.count("\n") == 1, ran.err


def test_a_missing_file_has_no_traceback(tmp_path: Path) -> None:
    missing = tmp_path / "00000000000000000005.log"
    ran = seglog_command("dump", missing.name, cwd=tmp_path)
    assert (ran.code, ran.text) == (2, f"Dumping {missing.name}\nLog starting offset: 5\n")
    assert ran.err == f"seglog: {missing}: No such file or directory\n"


def test_nothing_heavy_is_imported_for_a_dump(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").write_bytes(b"")
    code = (
        "import sys; from seglog.cli.main import main; main(['dump', '--print-data-log', sys.argv[1]]);"
        "print(sorted({'numpy', 'numba', 'pyarrow', 'rich', 'asyncio', 'multiprocessing'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "00000000000000000000.log"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """`seglog dump ... | head -1`: 4 MB do not fit into a pipe."""
    log = write_log(tmp_path, [encode_batch([NewRecord(b"v" * 1000, timestamp=1)] * 4000)])
    with start_seglog("dump", "--print-data-log", log) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Dumping {log}\n".encode()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
