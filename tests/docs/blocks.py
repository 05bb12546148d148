"""The fenced blocks of a page, and what runs them: Python, commands with their output, SQL, the command of a unit."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from seglog.cli.main import main

_FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SHELL: Final = re.compile(r"[|<>*;&$]")
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"$]*\"")
"""A sign of `_SHELL` outside of quotes needs a shell; any other `seglog` command runs in this process."""
_SECONDS: Final = 120.0
RUN: Final = frozenset({"python", "console", "sql", "ini"})
SHOWN: Final = frozenset({"text", "nginx"})
"""Languages of blocks that cannot run here; the commands in them are still held to the options that there are."""


class Block(NamedTuple):
    """``line`` is the page's line at which the content begins."""

    language: str
    text: str
    line: int


class Command(NamedTuple):
    """A line after ``$``, and the output that the page shows below it: ``…`` stands for any text."""

    line: str
    output: str

    @property
    def stays(self) -> bool:
        """Whether the command keeps running while the rest of the page runs."""
        return self.line.endswith("&")


def blocks(page: str) -> Iterator[Block]:
    """All blocks of a page, in their order; blocks in lists lose their indentation."""
    for found in _FENCE.finditer(page):
        indent, language, text = found.groups()
        lines = (line.removeprefix(indent) for line in text.splitlines(keepends=True))
        yield Block(language, "".join(lines), page.count("\n", 0, found.start()) + 2)


def commands(text: str) -> Iterator[Command]:
    """The commands of a ``console`` block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, output = part.replace("\\\n", "").partition("\n")
        yield Command(line.strip(), output)


class Reader:
    """Somebody who follows a page from its top to its end, in one directory.

    ``replaced`` are texts of the page that have other values here: addresses and paths. Close it when the page ends:
    commands that stay are told to end by SIGTERM, and must not fail until then.
    """

    def __init__(self, directory: Path, replaced: Mapping[str, str], capture: pytest.CaptureFixture[str]) -> None:
        self.names: dict[str, Any] = {"__name__": "page"}
        self._directory = directory
        self._replaced = replaced
        self._capture = capture
        self._staying: list[subprocess.Popen[bytes]] = []

    def read(self, page: str, name: str) -> None:
        for block in blocks(page):
            text = block.text
            for old, new in self._replaced.items():
                text = text.replace(old, new)
            if block.language == "python":
                self._python("\n" * (block.line - 1) + text, name)
            elif block.language == "console":
                for command in commands(text):
                    self._command(command)
            elif block.language == "sql":
                for statement in filter(None, map(str.strip, text.split(";"))):
                    self.names["spark"].sql(statement).collect()
            elif block.language == "ini":
                start = text.replace("\\\n", " ").partition("ExecStart=")[2].partition("\n")[0]
                self._start(re.sub(r"^\S*/", "", start).replace("%H", "host"))

    def close(self) -> None:
        self.names.clear()  # clients end with their page
        codes = []
        for process in reversed(self._staying):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=_SECONDS)
            codes.append(process.returncode)
        assert {*codes} <= {0, -signal.SIGTERM}, f"commands that stay ended with {codes}"

    def _python(self, code: str, name: str) -> None:
        before = set(self.names)
        exec(compile(code, name, "exec"), self.names)  # noqa: S102 - a page of this repository
        for new in sorted(set(self.names) - before):
            if new.startswith("test_"):
                self.names[new](self.names["seglog_broker"])

    def _command(self, command: Command) -> None:
        if command.stays:
            self._start(command.line.removesuffix("&").strip())
            return
        if command.line.startswith("seglog ") and not _SHELL.search(_QUOTED.sub("", command.line)):
            self._capture.readouterr()
            words = shlex.split(command.line)[1:]
            if words[0] == "spark" and words[1] != "table":  # the JVM stays in the directory in which it was started
                words = [str(self._directory / word) if (self._directory / word).exists() else word for word in words]
            code = main(words)
            out, err = self._capture.readouterr()
        else:
            done = self._popen(command.line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            outs, errs = done.communicate(timeout=_SECONDS)
            code, out, err = done.returncode, outs.decode(), errs.decode()
        assert code == 0, f"$ {command.line}\nended with {code}: {out}{err}"
        if command.output.strip():
            wanted = ".*?".join(map(re.escape, _without_spaces(command.output).split("…")))
            found = _without_spaces(out + err)
            assert re.search(wanted, found, re.DOTALL), f"$ {command.line}\nprinted\n{out}{err}"

    def _start(self, line: str) -> None:
        """Start a command that stays; one that serves says so in its first line."""
        process = self._popen(f"exec {line}", stdout=subprocess.PIPE, stderr=None)
        self._staying.append(process)
        if address := re.search(r"--listen (?:\w+://)?127\.0\.0\.1:(\d+)", line):
            assert process.stdout is not None
            assert process.stdout.readline(), f"$ {line}\nended with {process.wait(_SECONDS)}"
            socket.create_connection(("127.0.0.1", int(address[1])), _SECONDS).close()

    def _popen(self, line: str, *, stdout: int, stderr: int | None) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": paths, "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            ["bash", "-c", line], cwd=self._directory, env=environment, stdout=stdout, stderr=stderr
        )


def _without_spaces(text: str) -> str:
    """Tables are as wide as their content, which on the page is another's."""
    return re.sub(r"[ \t]+", " ", text.strip())


def without_blocks(page: str) -> str:
    """The page with an empty line for each line of its blocks."""
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page)


def mentioned(page: str) -> Iterator[Sequence[str]]:
    """Every `seglog` command in a page's text, tables and blocks, as words."""
    inline = re.findall(r"`(seglog [a-z][^`]*)`", without_blocks(page))
    shown = [block.text.replace("\\\n", " ") for block in blocks(page) if block.language != "python"]
    for line in (*inline, *re.findall(r"(?:^|[|$] |/)(seglog [a-z].*)$", "\n".join(shown), re.MULTILINE)):
        yield re.split(r"\s[|#]|&$|\s{3,}", line)[0].split()[1:]
