"""A round of compaction in a process of its own: `python -m seglog.worker compact`.

The live process stays responsive and free of numba. The round goes to the child as a line of JSON on its stdin, what it
yields comes back as lines on its stdout. The stdin stays open as long as the parent lives and wants the round: at its
end the child exits, so that it never writes into a directory that has a new owner.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Final, TextIO

from seglog.core import errors
from seglog.core.clock import SystemClock
from seglog.core.errors import CorruptError, SeglogError
from seglog.core.fs import OsFs, write_error
from seglog.storage.compaction.cleaner import CleaningAbortedError, clean
from seglog.storage.compaction.round import CleanedGroup, OffsetMapStats, Round

_POLL_SECONDS: Final = 0.2
_NICENESS: Final = 10
_READ: Final = 1 << 16
_KINDS: Final = {"mapped": OffsetMapStats, "group": CleanedGroup}


class WorkerFailedError(SeglogError):
    """The process that did the work ended without a result; what it printed went to our stderr."""


# The child's side


def serve(requests: BinaryIO, answers: TextIO) -> int:
    """Do the round that the first line of ``requests`` asks for; die when ``requests`` ends. Gives the exit status."""
    round_ = Round.from_json(requests.readline().decode())
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    threading.Thread(target=_die_with, args=(requests,), daemon=True).start()
    clock = SystemClock()
    pause = threading.Event()
    try:
        for event in clean(round_, OsFs(), clock, wait=pause.wait):
            _say(answers, "mapped" if isinstance(event, OffsetMapStats) else "group", *event)
    except CorruptError as error:
        _say(answers, "corrupt", type(error).__name__, error.reason, error.position, error.file, error.offset)
        return 1
    except OSError as error:
        _say(answers, "os", error.errno, error.strerror, error.filename)
        return 1
    _say(answers, "done")
    return 0


def _say(answers: TextIO, *message: object) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _die_with(requests: BinaryIO) -> None:
    while os.read(requests.fileno(), _READ):  # not by the stream: its lock would be in the way of a normal exit
        pass
    os._exit(1)


# The parent's side


def clean_in_child(round_: Round, should_stop: Callable[[], bool]) -> Generator[OffsetMapStats | CleanedGroup]:
    """As `clean`, carried out by a child process on this machine's file system.

    The child is gone when the iterator is exhausted, fails or is closed.
    """
    command = [sys.executable, "-m", "seglog.worker", "compact"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        with suppress(BrokenPipeError):  # it is dead already: the missing answer tells
            child.stdin.write(round_.to_json().encode() + b"\n")
            child.stdin.flush()
        for line in _lines(child.stdout, should_stop):
            kind, *fields = json.loads(line)
            if kind == "done":
                return
            if kind in _KINDS:
                yield _event(kind, fields)
            else:
                raise _error(kind, fields)
        raise WorkerFailedError(f"{' '.join(command[1:])} ended with status {child.wait()}")
    finally:
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.wait()
        child.stdout.close()


def _lines(stream: Any, should_stop: Callable[[], bool]) -> Iterator[bytes]:
    rest = b""
    while True:
        if should_stop():
            raise CleaningAbortedError
        if not select.select([stream], [], [], _POLL_SECONDS)[0]:
            continue
        data = os.read(stream.fileno(), _READ)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _event(kind: str, fields: list[Any]) -> OffsetMapStats | CleanedGroup:
    if kind == "mapped":
        return OffsetMapStats(*fields)
    return CleanedGroup(tuple(fields[0]), *fields[1:])


def _error(kind: str, fields: list[Any]) -> Exception:
    if kind == "os":
        failed = OSError(*fields)
        return write_error(failed, str(failed.filename))
    name, reason, position, file, offset = fields
    found = getattr(errors, name)
    assert issubclass(found, CorruptError)
    error: CorruptError = found(reason, position=position, file=file, offset=offset)
    return error
