"""`seglog completion`: real shells complete commands, options, values, topics and groups."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import typer
from typer.core import TyperGroup

from seglog.cli.completion import FILES, SHELLS, candidates, words_of
from seglog.cli.main import COMMANDS, GROUPS, _app
from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import NewTopic
from tests.cli.run import Run, printed_on
from tests.kit.topics import create_topics

_INTERACTIVE: Final = {
    "bash": (["bash", "--norc", "-i"], 'eval "$(seglog completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u; eval "$(seglog completion zsh)"'),
}
"""Interactive, without a user's settings, and how to load the script."""


def _complete(line: str) -> list[str]:
    words = words_of(["bash", line, ""])
    app = _app([word for word in words if not word.startswith("-")])
    return [one.word for one in candidates(typer.main.get_command(app), words)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("seglog con", ["console", "consume", "configs"]),
        ("seglog topics de", ["describe", "delete"]),
        ("seglog topics nothing ", []),
        ("seglog nothing ", []),
        ("seglog consume --iso", ["--isolation-level"]),
        ("seglog consume t --isolation-level read_c", ["read_committed"]),
        ("seglog consume --isolation-level=read_c", ["--isolation-level=read_committed"]),
        ("seglog consume -e --offset ", ["beginning", "end"]),
        ("seglog consume --exit", ["--exit-at-end"]),
        ("seglog consume --exit-at-end=", []),
        ("seglog consume -- --o", []),
        ("seglog produce -z z", ["zstd"]),
        ("seglog produce -zgzip -a ", ["all", "1", "0"]),
        ("seglog produce --batch-size ", []),
        ("seglog produce t --from-file ", [FILES]),
        ("seglog repair x --log-start ", ["segment", "checkpoint"]),
        ("seglog serve --data-dir=", [FILES]),
        ("seglog verify a b ", [FILES]),
        ("seglog ls a b", []),
        ("seglog completion ", list(SHELLS)),
        ("seglog configs describe --entity-type t", ["topics"]),
        ("seglog --v", ["--version"]),
        ("seglog topics delete 'my t", []),
    ],
)
def test_completes_the_last_word(line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGLOG_BOOTSTRAP", "127.0.0.1:1")
    assert _complete(line) == expected


@pytest.mark.parametrize("words", [[name] for name in COMMANDS] + [[g, n] for g in GROUPS for n in GROUPS[g].commands])
def test_every_option_of_every_command_is_completed(words: list[str]) -> None:
    command = typer.main.get_command(_app(words))
    for word in words:
        assert isinstance(command, TyperGroup)
        command = command.commands[word]
    long = {
        name
        for one in command.params
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("--") and not getattr(one, "hidden", False)
    }
    assert {*_complete(f"seglog {' '.join(words)} --")} == {*long, "--help"}


def test_topics_and_groups_come_from_the_brokers(broker: RunningNode, run: Run) -> None:
    create_topics(broker.bootstrap, NewTopic("complete-orders", 1, 1), NewTopic("complete-users", 1, 1))
    run("consume", "complete-users", "-g", "complete-readers", "-e", "-b", broker.bootstrap)
    at = f"-b {broker.bootstrap}"
    assert _complete(f"seglog consume {at} complete-") == ["complete-orders", "complete-users"]
    assert _complete(f"seglog consume {at} --topic=complete-o") == ["--topic=complete-orders"]
    assert _complete(f"seglog topics delete complete-users --bootstrap-server={broker.bootstrap} complete-o") == [
        "complete-orders"
    ]
    assert _complete(f"seglog groups describe {at} complete-") == ["complete-readers"]
    assert _complete(f"seglog consume {at} --group comp") == ["complete-readers"]
    assert not any(word.startswith("__") for word in _complete(f"seglog consume {at} "))
    assert "__consumer_offsets" in _complete(f"seglog consume {at} __")


@pytest.fixture
def shell_environment(tmp_path: Path) -> dict[str, str]:
    """A home without settings, and a PATH on which `seglog` is this one."""
    (tmp_path / "seglog").write_text(f'#!/bin/sh\nexec {sys.executable} -m seglog "$@"\n')
    (tmp_path / "seglog").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "SEGLOG_BOOTSTRAP": "127.0.0.1:1"}


@pytest.mark.parametrize("shell", [shell for shell in _INTERACTIVE if shutil.which(shell)])
def test_a_shell_completes_as_tab_is_pressed(shell: str, shell_environment: dict[str, str]) -> None:
    """The words of the line are typed in part; only if they are completed, the command asks a broker."""
    command, setup = _INTERACTIVE[shell]
    keys = f"{setup}\nseglog conf\tdesc\t--entity-ty\ttop\t--entity-na\tx\nexit\n"
    outer, inner = pty.openpty()
    with subprocess.Popen(
        command, env=shell_environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
    ):
        os.close(inner)
        os.write(outer, keys.encode())
        printed = printed_on(outer).decode(errors="replace")
    assert "seglog: no broker answers at 127.0.0.1:1:" in printed, printed


@pytest.mark.parametrize("fish", [path for path in [shutil.which("fish")] if path])
def test_fish_completes(fish: str, shell_environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "web-0").mkdir()
    for line, expected in (
        ("seglog conf", ["configs\tConfigurations of topics and brokers."]),
        ("seglog produce --codec=z", ["--codec=zstd"]),
        ("seglog produce -z ", ["gzip", "lz4", "none", "snappy", "zstd"]),
        ("seglog ls web", ["web-0/"]),
        ("seglog serve --data-dir=web", ["--data-dir=web-0/"]),
    ):
        script = f"seglog completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            [fish, "--no-config", "-c", script],
            env=shell_environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert sorted(done.stdout.splitlines()) == expected
