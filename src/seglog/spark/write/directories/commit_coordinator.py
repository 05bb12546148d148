"""The commit coordinator: the process that has a log directory open while Spark writes to it.

Spark plans a job in one of its pooled processes and commits it in another; neither lives as long as the job. So the
planning process starts a coordinator on the driver's machine (`python -m seglog.worker keep DIR`). It opens the
directory, which takes the directory's lock, and serves all jobs that write there over a unix socket: one connection for
each request, a line of JSON each way, one request at a time.

=========== ===================================================================== =====================================
request     fields                                                                answer
=========== ===================================================================== =====================================
begin       the fields of `JobRequest`                                            topics: partitions and configuration,
                                                                                  adopted
commit      job, also (other jobs to end), application, version, parts,           records, already
            allow_foreign, intake
abort       jobs                                                                  nothing
status      none                                                                  jobs, process id
=========== ===================================================================== =====================================

An answer is ``{"ok": …}`` or ``{"error": [class, text], "again": …}``. With ``again`` a commit stopped half way and the
coordinator ends; the next one completes that commit when it opens the directory.

If a request has ``leave`` and no job is open after it, the coordinator closes the directory, answers and ends: after a
batch job its directory is free. It also ends, without an answer, when no job has been open for a while, on SIGTERM, and
when the owners of all its jobs are gone. A driver that is killed leaves only staged files, which the next coordinator
removes, and perhaps the manifest of a commit, which the next opening completes. If the coordinator itself is killed,
the job's next request starts another one, which continues where it was.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import selectors
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from seglog.core.clock import Clock, SystemClock
from seglog.core.config import LogConfig
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.fs import Fs, OsFile, OsFs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.spark.runtime.processes import ProcessWatch
from seglog.storage.adopt import StagedPart, adopt, collect_orphans, read_ledger, remove_job
from seglog.storage.adopt.job_adoption import log_of
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.owner_socket import listen_for
from seglog.storage.formats.adopt_manifest import intake_from_json

READY: Final = "ready"
"""A new coordinator writes this to its stdout, or else a line of JSON like an answer's error."""
_logger = logging.getLogger("seglog")
_PATIENCE: Final = 30.0
"""Seconds that a client may take to connect to the coordinator it started, and then to send its request."""


class CommitCoordinatorError(SeglogError):
    """The commit coordinator failed for a reason that has no class of its own here."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The request that begins a job.

    The directory stays open until the job is committed or aborted, or process ``owner`` ends. The topics of ``create``
    are created with ``config`` if they do not exist; None stands for the directory's default number of partitions. The
    answer describes only ``topic`` if it is given. ``application``, ``version`` and ``allow_foreign`` are those of the
    commit. A job of a ``stream`` replaces the stream's open job.
    """

    job: str
    owner: int
    topic: str | None = None
    create: Mapping[str, int | None] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    application: str | None = None
    version: int = 0
    allow_foreign: bool = False
    stream: str | None = None


def log_path(address: str) -> str:
    """The file to which the coordinator of a socket writes its stderr."""
    return address.removesuffix(".sock") + ".log"


def check_agrees(
    name: str, found: int, found_config: LogConfig, partitions: int | None, config: Mapping[str, str]
) -> None:
    """Raise `InvalidConfigError` if the options ask for another number of partitions than ``found``, or another
    configuration."""
    if partitions is not None and partitions != found:
        raise InvalidConfigError(
            f"option numPartitions is {partitions}, but topic {name} exists with {found} partitions"
        )
    for key, text in config.items():
        if found_config.with_overrides({key: text}) != found_config:
            raise InvalidConfigError(
                f"option topic.{key} is {text}, but topic {name} exists with another value: leave the option out, or "
                "change the topic (seglog.open(…).alter_config)"
            )


@contextmanager
def one_at_a_time(address: str) -> Iterator[None]:
    """Held to start a coordinator or to remove the files of one: by one of this user's processes at a time."""
    with closing(OsFs().open(os.path.join(os.path.dirname(address), "starts.lock"), create=True)) as lock:
        assert isinstance(lock, OsFile)
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield


def forget_log(address: str) -> None:
    """Remove the log of a coordinator that has ended, if the log is empty."""
    fs, log = OsFs(), log_path(address)
    with one_at_a_time(address):
        if not fs.exists(address) and fs.exists(log) and not fs.stat(log).size:
            fs.unlink(log)


class CommitCoordinator:
    """Serves the jobs of one open directory; ``linger`` is in seconds."""

    def __init__(self, directory: LogDir, listener: socket.socket, *, clock: Clock, linger: float) -> None:
        self._directory = directory
        self._listener = listener
        self._clock = clock
        self._linger = linger
        self._jobs: dict[str, JobRequest] = {}
        self._superseded: dict[str, set[str]] = {}
        self._collected = False
        self._spent = False
        self._parting: tuple[socket.socket, bytes] | None = None

    def run(self, wake: socket.socket) -> None:
        """Serve until the coordinator has nothing to wait for, or until ``wake`` is readable."""
        with selectors.DefaultSelector() as selector, closing(ProcessWatch()) as owners:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            until = self._clock.monotonic() + max(
                self._linger, _PATIENCE
            )  # the client that started us has yet to connect
            while True:
                gone = owners.gone({job.owner for job in self._jobs.values()})
                self._drop([job for job, entry in self._jobs.items() if entry.owner in gone])
                if self._jobs:
                    left = owners.POLL_SECONDS
                else:
                    left = until - self._clock.monotonic()
                    if gone or left <= 0 or self._parting is not None:
                        collect_orphans(self._directory)  # of attempts that went on after their job had ended
                        return
                for key, _ in selector.select(left):
                    if key.fileobj is wake:
                        # Before its first request it may have been started for a commit, whose files must stay.
                        if self._collected and not self._jobs:
                            collect_orphans(self._directory)
                        return
                    self._serve()
                    until = self._clock.monotonic() + self._linger
                if self._spent:
                    return

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with ExitStack() as until, suppress(OSError):
            until.enter_context(closing(connection))
            connection.settimeout(_PATIENCE)
            with connection.makefile("rb") as lines:
                request = lines.readline()
            if not request.strip():
                return
            fields = json.loads(request)
            leave = fields.pop("leave", False)
            answer = self._answer(fields)
            if leave and not self._jobs and not self._spent:
                self._parting = connection, answer
                until.pop_all()
            else:
                connection.sendall(answer + b"\n")

    def part(self) -> None:
        """Answer the client that waits until the directory is closed."""
        if self._parting is not None:
            connection, answer = self._parting
            with closing(connection), suppress(OSError):
                connection.sendall(answer + b"\n")

    def _answer(self, fields: dict[str, Any]) -> bytes:
        try:
            match fields.pop("do"):
                case "begin":
                    answer = self._begin(JobRequest(**fields))
                case "commit":
                    answer = self._commit(**fields)
                case "abort":
                    answer = self._abort(**fields)
                case "status":
                    answer = {"jobs": sorted(self._jobs), "pid": os.getpid()}
                case other:
                    raise CommitCoordinatorError(f"no request {other!r}")
        except Exception as error:
            _logger.exception("a request failed")  # the client raises it; the traceback is here
            return json.dumps({"error": describe(error), "again": self._spent}).encode()
        return json.dumps({"ok": answer}).encode()

    # Requests

    def _begin(self, request: JobRequest) -> dict[str, Any]:
        """Open a job: create its topics and describe those that exist.

        A stream has one open job. The begin of its next batch ends the job of a batch that was interrupted; but because
        the commit or abort of that same batch begins a job too, its staged files stay until the outcome is known.
        """
        self._collect_once(request.job)
        if request.stream is not None:
            before = {name for name, entry in self._jobs.items() if entry.stream == request.stream}
            self._forget(before)
            self._superseded.setdefault(request.stream, set()).update(before)
        for name, partitions in request.create.items():
            self._ensure(name, partitions, request.config)
        topics = self._directory.topics()
        if request.topic is not None:
            topics = {request.topic: topics[request.topic]}
            # Raise early what the commit would raise: a refused partition, or a topic that belongs to a broker.
            for partition in self._directory.partitions_of(request.topic):
                log_of(self._directory, partition, allow_foreign=request.allow_foreign)
        targets = {}
        for name, info in topics.items():
            served = [one for one in self._directory.partitions_of(name) if one in self._directory.logs]
            if served and (request.allow_foreign or name in self._directory.entries):
                targets[name] = [info.partitions, self._directory.log(*served[0]).config.overrides()]
        self._jobs[request.job] = request
        ledger, application = read_ledger(self._directory.fs, self._directory.path), request.application
        adopted = application is not None and ledger.is_adopted(application, request.version)
        return {"topics": targets, "adopted": adopted}

    def _ensure(self, name: str, partitions: int | None, config: Mapping[str, str]) -> None:
        """Create a topic, or check that the existing one agrees with the options."""
        directory = self._directory
        found = directory.topics().get(name)
        if found is None:
            directory.create_topic(name, partitions or directory.config.num_partitions, config)
            return
        log = directory.logs.get(TopicPartition(name, 0))
        wanted = {} if log is None else config
        check_agrees(name, found.partitions, LogConfig() if log is None else log.config, partitions, wanted)

    def _commit(
        self,
        *,
        job: str,
        also: Sequence[str],
        application: str,
        version: int,
        parts: Sequence[Mapping[str, object]],
        allow_foreign: bool,
        intake: Sequence[Any],
    ) -> dict[str, Any]:
        self._collect_once(job)
        staged = [StagedPart.from_json(part) for part in parts]
        try:
            done = adopt(
                self._directory,
                job,
                staged,
                application,
                version,
                allow_foreign=allow_foreign,
                intake=intake_from_json(intake),
            )
        except BaseException:
            self._spent = self._directory.health.failure is not None
            raise
        self._forget((job, *also))
        return {"records": done.records, "already": done.already}

    def _abort(self, *, jobs: Sequence[str]) -> dict[str, Any]:
        streams = {entry.stream for job, entry in self._jobs.items() if job in jobs and entry.stream is not None}
        self._drop({*jobs, *(job for stream in streams for job in self._superseded.pop(stream, ()))})
        return {}

    # Jobs that end

    def _forget(self, jobs: Collection[str]) -> None:
        for job in jobs:
            self._jobs.pop(job, None)
            for superseded in self._superseded.values():
                superseded.discard(job)

    def _drop(self, jobs: Collection[str]) -> None:
        """End jobs without a commit and remove what they staged."""
        self._forget(jobs)
        for job in jobs:
            remove_job(self._directory, job)

    def _collect_once(self, job: str) -> None:
        """Remove what jobs of earlier coordinators staged, except ``job``, which may be older than this coordinator."""
        if not self._collected:
            self._collected = True
            collect_orphans(self._directory, keep=(*self._jobs, job))


def describe(error: Exception) -> list[str]:
    """An error as an answer carries it."""
    return [type(error).__name__, str(error) or repr(error)]


def keep(path: str, linger: float, *, fs: Fs | None = None) -> int:
    """Open the log directory at ``path``, write `READY` to stdout and serve until no job is left; the exit status."""
    signals, wake = socket.socketpair()
    signals.settimeout(0)
    signal.set_wakeup_fd(signals.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    clock, fs = SystemClock(), fs or OsFs()
    try:
        directory = LogDir.open(path, ground=Ground(fs=fs))
        try:
            listener = listen_for(path)
        except BaseException:
            directory.close()
            raise
    except (SeglogError, OSError) as error:
        print(json.dumps({"error": describe(error)}), flush=True)
        return 1
    print(READY, flush=True)
    sys.stdout.close()
    address = listener.getsockname()
    coordinator = CommitCoordinator(directory, listener, clock=clock, linger=linger)
    try:
        coordinator.run(wake)
    finally:
        # In this order: a client that connects while the directory closes waits, and then finds nothing listening.
        try:
            directory.close()
        finally:
            with suppress(FileNotFoundError):
                OsFs().unlink(address)
            listener.close()
            coordinator.part()
    forget_log(address)
    return 0
