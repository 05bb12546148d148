"""`seglog console`: options that are refused before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.run import Run, run_here


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "console needs a directory, brokers (-b HOST:PORT), or both"),
        (("{}", "--write"), "--write needs -b HOST:PORT"),
        (("{}", "-X", "a=b"), "--property and --command-config need -b HOST:PORT"),
        (("{}", "--listen", "0.0.0.0:0"), "other machines could read the log"),
        (("{}", "--listen", "[::]:0"), "other machines could read the log"),
        (("{}", "--listen", ":0"), "other machines could read the log"),
        (("{}", "--listen", "example.org:80"), "other machines could read the log"),
        (("{}", "--listen", "nonsense"), "--listen: 'nonsense' is neither HOST:PORT"),
        (("{}/none",), "No such file or directory"),
        (("{}/file",), "not a directory"),
        (("{}",), "is neither a log directory nor a partition's, and holds no log directory"),
        (("-b", "x:y"), "--bootstrap-server: 'x:y' is not HOST:PORT"),
        (("{}", "--token-file", "{}/file"), "can be read or written by other users"),
    ],
)
def test_refused_options(run: Run, tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    (tmp_path / "file").write_text("short\n")
    ran = run("console", *(one.format(tmp_path) for one in arguments))
    assert (ran.code, reason in ran.err, ran.text) == (2, True, ""), ran.err


def test_a_short_token_is_refused(run: Run, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short\n")
    token.chmod(0o600)
    ran = run("console", tmp_path, "--token-file", token)
    assert (ran.code, "at least 16 characters" in ran.err) == (2, True)
