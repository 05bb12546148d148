"""A broker as a process of its own, told what to do through its standard input: one JSON object a line, one in answer.

When its parent process ends, in whatever way, its standard input ends, and it stops.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Final

from seglog.core import errors
from seglog.core.errors import SeglogError
from seglog.faults.fault import Fault, FaultError
from seglog.faults.topic_fixture import TopicFixture
from seglog.testing.injected_fault import BrokerError

_PATIENCE: Final = 60


class ProcessRunner:
    """The `Runner` for tests that kill a broker, or measure it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, settings: Mapping[str, str], topics: Mapping[str, TopicFixture], ahead: float) -> str:
        # A group of its own: Ctrl-C is for the tests. In the same session still, so that the kernel wakes and ends it
        # if it was stopped when they end.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "seglog.testing.broker_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            process_group=0,
        )
        try:
            bootstrap = self._ask({"start": [dict(settings), _documents(topics), ahead]})
        except BaseException:
            self.kill()
            raise
        assert isinstance(bootstrap, str)
        return bootstrap

    def stop(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        _close(process.stdin)
        try:
            code = process.wait(_PATIENCE)
        finally:
            self.kill()
        if code:
            raise BrokerError(f"the broker's process has ended with {code}; see its standard error for the reason")

    def kill(self) -> None:
        process = self._process
        assert process is not None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            _close(pipe)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # until it has come to all of its threads, or the process has ended
            assert self._process is not None
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def reset(self, topics: Mapping[str, TopicFixture]) -> None:
        self._ask({"reset": _documents(topics)})

    def create_topic(self, name: str, fixture: TopicFixture) -> None:
        self._ask({"create": [name, fixture.to_json()]})

    def inject(self, faults: Sequence[Fault], *, in_order: bool) -> list[int]:
        documents = [fault.to_json() for fault in faults]
        ids: list[int] = self.control("inject", {"faults": documents, "in_order": in_order})
        return ids

    def control(self, verb: str, argument: Mapping[str, Any]) -> Any:
        return self._ask({"control": [verb, dict(argument)]})

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _ask(self, command: Mapping[str, object]) -> object:
        """The command's result; raises the error that it ended with."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
            line = _line(process.stdout)
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            raise BrokerError(f"the broker's process has ended with {process.wait(_PATIENCE)}")
        answer = json.loads(line)
        if "error" in answer:
            raise _error(answer)
        return answer["result"]


def _documents(topics: Mapping[str, TopicFixture]) -> dict[str, object]:
    return {name: fixture.to_json() for name, fixture in topics.items()}


def _line(pipe: IO[bytes]) -> bytes:
    """A line, or the rest of the output at its end."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        if not selector.select(_PATIENCE):
            raise BrokerError(f"the broker has printed nothing for {_PATIENCE} s")
    return pipe.readline()


def _close(pipe: IO[bytes]) -> None:
    with suppress(BrokenPipeError):  # a command that could not be written is tried once more, and can be as little now
        pipe.close()


def _error(answer: Mapping[str, Any]) -> Exception:
    """The error that the process had, as far as it is one of ours."""
    kind = FaultError if answer["error"] == FaultError.__name__ else getattr(errors, answer["error"], None)
    if isinstance(kind, type) and issubclass(kind, SeglogError):
        return kind(answer["message"])
    if answer["error"] == "OSError":
        return OSError(*answer["arguments"])
    return BrokerError(f"{answer['error']}: {answer['message']}")
