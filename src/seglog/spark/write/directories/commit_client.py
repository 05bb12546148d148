"""The client of a log directory's commit coordinator, which it starts where none runs (`commit_coordinator`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from seglog.core import errors
from seglog.core.errors import CorruptError, LogDirInUseError, SeglogError
from seglog.core.fs import OsFile, OsFs
from seglog.core.types import TopicPartition
from seglog.spark.write.directories.commit_coordinator import (
    READY,
    CommitCoordinatorError,
    JobRequest,
    forget_log,
    log_path,
    one_at_a_time,
)
from seglog.storage.adopt import NO_INTAKE, Intake, StagedPart
from seglog.storage.directory.owner_socket import exchange, socket_path, why_unreachable

_ATTEMPTS: Final = 10
"""How many coordinators a request may see end before it is answered."""


def directories_of(path: str) -> list[str]:
    """The absolute log directories of a sink's option ``path``: one, or several with commas."""
    whole = directory_of(path)
    if "," not in path or OsFs().exists(whole):
        return [whole]
    return [directory_of(one.strip()) for one in path.split(",") if one.strip()]


def directory_of(path: str) -> str:
    """The absolute log directory of a sink's option ``path``."""
    return os.path.abspath("/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path)


class TopicTarget(NamedTuple):
    """A topic to write to: its number of partitions, and its configuration in Kafka's text form."""

    partitions: int
    config: Mapping[str, str]


class JobStart(NamedTuple):
    """The answer to `begin`: the topics, and whether the transaction of the job was adopted before.

    ``homes`` are the log directories in which to stage, where several are written to.
    """

    topics: Mapping[str, TopicTarget]
    adopted: bool
    homes: Mapping[TopicPartition, str] = MappingProxyType({})


class CommitResult(NamedTuple):
    """The number of records; ``already`` if an earlier commit of the same transaction adopted them."""

    records: int
    already: bool


class CommitClient:
    """Sends requests to the coordinator of the log directory at ``path``. Holds nothing open between two requests.

    The directory stays open for ``linger`` seconds after the last job; with 0 it is closed when that job's `commit` or
    `abort` returns. Every method raises what the directory raised in the coordinator: `LogDirInUseError` if another
    process has it open.
    """

    def __init__(self, path: str, *, linger: float) -> None:
        self._path = os.path.realpath(path)
        self._linger = linger

    @property
    def directory(self) -> str:
        return self._path

    def begin(self, request: JobRequest) -> JobStart:
        """Begin a job; start a coordinator if none runs."""
        answer = self._ask("begin", **asdict(request), leave=self._linger == 0)
        return JobStart({name: TopicTarget(*one) for name, one in answer["topics"].items()}, answer["adopted"])

    def commit(
        self,
        job: str,
        application: str,
        version: int,
        parts: Sequence[StagedPart],
        *,
        also: Sequence[str] = (),
        allow_foreign: bool = False,
        intake: Intake = NO_INTAKE,
    ) -> CommitResult:
        """Adopt the staged ``parts`` in this order, once for (application, version), and end the job.

        The same commit writes the marks of ``intake``.
        """
        described = [part.to_json() for part in parts]
        answer = self._ask(
            "commit",
            job=job,
            also=list(also),
            application=application,
            version=version,
            parts=described,
            allow_foreign=allow_foreign,
            intake=intake,
            leave=self._linger == 0,
        )
        return CommitResult(**answer)

    def abort(self, *jobs: str) -> None:
        """End jobs without a commit."""
        self._ask("abort", jobs=jobs, leave=self._linger == 0)

    def status(self) -> dict[str, Any]:
        """The open jobs, and the coordinator's process id."""
        found: dict[str, Any] = self._ask("status")
        return found

    def _ask(self, do: str, **fields: object) -> Any:
        request = json.dumps({"do": do, **fields}).encode() + b"\n"
        address = socket_path(self._path)
        refused = None
        for _ in range(_ATTEMPTS):
            line = exchange(self._path, request)
            if line is None:
                self._start(address)
            elif line:
                answer = json.loads(line)
                if "ok" in answer:
                    return answer["ok"]
                refused = _error(self._path, *answer["error"])
                if not answer.get("again"):
                    break
        raise refused or CommitCoordinatorError(
            f"the commit coordinator of {self._path} ended {_ATTEMPTS} times; see {log_path(address)}"
        )

    def _start(self, address: str) -> None:
        """Start a coordinator, unless another client has just done so; then `address` accepts connections.

        If the coordinator is killed while it starts, nothing listens, and `_ask` tries again.
        """
        fs = OsFs()
        command = [sys.executable, "-m", "seglog.worker", "keep", self._path, str(self._linger)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))}
        log = log_path(address)
        with one_at_a_time(address):
            if exchange(self._path, b"\n") is not None:
                return
            fs.write(log, b"")
            with closing(fs.open(log)) as stderr:
                assert isinstance(stderr, OsFile)
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr.fileno(),
                    env=environment,
                    cwd="/",
                    start_new_session=True,  # it must survive the end of the driver's terminal or process group
                )
            assert child.stdout is not None
            with child.stdout as answers:
                line = answers.readline().decode().strip()
            if not line and child.wait() < 0:
                return  # killed before it listened: `_ask` starts another one
            threading.Thread(target=child.wait, name="seglog-commit-coordinator", daemon=True).start()
            said = fs.read(log).decode(errors="replace").strip()
        if line != READY:
            forget_log(address)
            if not line:
                raise CommitCoordinatorError(f"{' '.join(command)} failed: {said}")
            refused = _error(self._path, *json.loads(line)["error"])
            if isinstance(refused, LogDirInUseError) and exchange(self._path, b"\n") is not None:
                return  # a client with another TMPDIR was faster
            raise refused


def _error(directory: str, name: str, text: str) -> Exception:
    """A seglog error of its own class; any other error as a `CommitCoordinatorError`."""
    found = getattr(errors, name, None)
    if name == LogDirInUseError.__name__:
        socket = why_unreachable(directory)
        text += (
            " (a Spark job opens the directory in its own process: close it everywhere else first. If a seglog broker "
            "has it open, run the job as the broker's user on its machine; if it is another broker, write through it, "
            f"with the option kafka.bootstrap.servers{socket and f'; {socket}'})"
        )
    if isinstance(found, type) and issubclass(found, CorruptError):
        return found(text)
    if isinstance(found, type) and issubclass(found, SeglogError):
        return found(text)
    return CommitCoordinatorError(f"{name}: {text}")
