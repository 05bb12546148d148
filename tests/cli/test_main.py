"""All commands: exit codes, errors in one line, a fast start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.cli.main import COMMANDS, GROUPS
from seglog.records.record import NewRecord, encode_batch
from tests.cli.logs import write_log
from tests.cli.run import Run, seglog_command, start_seglog


def test_no_argument_prints_the_help_with_all_commands(run: Run) -> None:
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
        assert "--json" in ran.text or command in ("completion", "mcp")


def test_an_unknown_word_is_answered_with_the_nearest_one(run: Run) -> None:
    for line, reason in (
        ("prduce", "no such command: prduce; did you mean produce? (see seglog --help)"),
        ("topics dele", "no such command: dele; did you mean delete? (see seglog topics --help)"),
        ("topics zz", "no such command: zz (see seglog topics --help)"),
        ("produce t --partitoner x", "no such option: --partitoner; did you mean --partitioner? (see seglog produce"),
        ("produce t --value-formt=x", "no such option: --value-formt; did you mean --value-format? (see"),
        ("consume t --boot x", "no such option: --boot; did you mean --bootstrap-server? (see seglog consume"),
        ("spark table --catlog x", "no such option: --catlog; did you mean --catalog? (see seglog spark table"),
        ("ls --jsno", "no such option: --jsno; did you mean --json? (see seglog ls"),
        ("consume t --exit-at-ned", "no such option: --exit-at-ned; did you mean --exit-at-end? (see"),
        ("consume t --nothing-like-it", "no such option: --nothing-like-it (see seglog consume --help)"),
        ("consume t -q", "no such option: -q (see seglog consume --help)"),
        ("--hlep", "no such option: --hlep; did you mean --help? (see seglog --help)"),
    ):
        ran = run(*line.split())
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, b"", 1)
        assert ran.err.startswith(f"seglog: {reason}")


_ENDS_DATA = ("abort", "delete", "elect", "force-terminate", "fsck", "leave", "remove", "repair", "strays", "undelete")
_ONLY_MOVES = {"cluster remove-broker"}


@pytest.mark.parametrize(
    "command",
    [
        line
        for line in (*COMMANDS, *(f"{group} {name}" for group in GROUPS for name in GROUPS[group].commands))
        if line.split()[-1].startswith(_ENDS_DATA) and line not in _ONLY_MOVES
    ],
)
def test_a_command_that_ends_data_can_be_asked_for_its_effect_and_not_to_ask(run: Run, command: str) -> None:
    options = {word for word in run(*command.split(), "--help").text.replace(",", " ").split() if word[0] == "-"}
    assert {"--yes", "-y", "--dry-run"} <= options


def test_ctrl_c_while_modules_load_has_no_traceback() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "seglog", "ls"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.endswith("| typing\n") or " typer._click" in line:
                break  # and typer itself is still to be loaded
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        assert process.wait(60) == 130
    assert all(line.startswith("import time:") for line in errors.splitlines())


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


def test_dump_imports_no_heavy_modules(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").write_bytes(b"")
    code = (
        "import sys; from seglog.cli.main import main; main(['dump', '--print-data-log', sys.argv[1]]);"
        "print(sorted({'numpy', 'numba', 'pyarrow', 'rich', 'asyncio', 'multiprocessing'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "00000000000000000000.log"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    """`seglog dump ... | head -1`: 4 MB do not fit into a pipe."""
    log = write_log(tmp_path, [encode_batch([NewRecord(b"v" * 1000, timestamp=1)] * 4000)])
    with start_seglog("dump", "--print-data-log", log) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Dumping {log}\n".encode()
        process.stdout.close()
        assert process.wait(timeout=60) == 0


def test_a_closed_stdout_fails_and_a_closed_stderr_does_not(tmp_path: Path) -> None:
    code = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, '-m', *sys.argv[2:]])"
    for descriptor, arguments, expected in (
        ("1", ("ls", str(tmp_path)), (2, "", "seglog: stdout is closed\n")),
        ("1", ("--help",), (2, "", "seglog: stdout is closed\n")),
        ("2", ("ls", str(tmp_path / "x")), (2, "", "")),
        ("2", ("ls", str(tmp_path)), (0, "0 topics, 0 partitions, 0 segments, 0 B\n", "")),
    ):
        command = [sys.executable, "-c", code, descriptor, "seglog", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == expected


def test_prints_a_name_that_is_not_utf8_unchanged(tmp_path: Path) -> None:
    partition = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff-0")
    os.mkdir(partition)
    write_log(Path(partition), [encode_batch([NewRecord(b"v", timestamp=1)])])
    for arguments in (["ls"], ["dump"], ["find", "--offset", "0"]):
        ran = seglog_command(*arguments, partition)
        assert (ran.code, ran.err) == (0, "")
        assert arguments[0] == "find" or b"bad\xff-0" in ran.out
        documents = seglog_command(*arguments, partition, "--json").objects
        assert "bad\\udcff-0" in str(documents)


def test_dumping_a_missing_path_fails(tmp_path: Path) -> None:
    for options in ([], ["--json"], ["--records", "--json"]):
        ran = seglog_command("dump", *options, "nowhere", cwd=tmp_path)
        assert (ran.code, ran.out, ran.err) == (2, b"", "seglog: nowhere: No such file or directory\n")


def test_an_empty_path_does_not_mean_the_working_directory(tmp_path: Path) -> None:
    write_log(tmp_path, [encode_batch([NewRecord(b"v", timestamp=1)])])
    before = sorted(os.listdir(tmp_path))
    for arguments in (["ls", ""], ["dump", ""], ["verify", ""], ["repair", "", "--yes"], ["find", "", "--offset", "0"]):
        ran = seglog_command(*arguments, cwd=tmp_path)
        assert (ran.code, ran.out) == (2, b""), arguments
    assert sorted(os.listdir(tmp_path)) == before


def test_repairs_the_target_of_a_link(tmp_path: Path) -> None:
    partition = tmp_path / "web-0"
    partition.mkdir()
    write_log(partition, [encode_batch([NewRecord(b"v", timestamp=1)])])
    (tmp_path / "link").symlink_to(partition)
    assert seglog_command("repair", "--yes", tmp_path / "link").code == 0
    assert (partition / "00000000000000000000.index").exists()
