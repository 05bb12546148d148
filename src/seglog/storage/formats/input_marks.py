"""How far files were read into a topic; the ledger has it, and a job's commit writes it with the job's records.

In the ledger and in the manifest a mark is a list: topic, topic id, path, device, inode, time of change in ms,
position, and the SHA-256 of up to 64 KiB at the beginning and before the position.
"""

from __future__ import annotations

from typing import NamedTuple

from seglog.core.errors import CorruptCheckpointError


class InputMark(NamedTuple):
    """``position`` bytes of a file are in a topic. ``head`` and ``tail`` are digests of its first and last bytes."""

    topic: str
    topic_id: str
    path: str
    device: int
    inode: int
    mtime_ms: int
    position: int
    head: str
    tail: str

    @property
    def key(self) -> tuple[str, str]:
        return self.topic, self.path


class Intake(NamedTuple):
    """What a job reads: each file's mark as the ledger must have it until the commit, and as it is then.

    ``digest`` is of all that was given, by which another input under the same application and version is told.
    """

    marks: tuple[tuple[InputMark | None, InputMark], ...] = ()
    digest: str = ""


def encode_marks(marks: tuple[InputMark, ...]) -> list[list[object]]:
    return [list(mark) for mark in marks]


def decode_marks(content: object, file: str | None) -> tuple[InputMark, ...]:
    """`CorruptCheckpointError` where one cannot be read: without it a file would be read twice."""
    kinds = (str, str, str, int, int, int, int, str, str)
    found = []
    for entry in content if isinstance(content, list) else [None]:
        if not isinstance(entry, list) or [type(one) for one in entry] != list(kinds):
            raise CorruptCheckpointError("'inputs' is not a list of marks", file=file)
        found.append(InputMark(*entry))
    return tuple(found)
