"""A response in portions: what is in memory, and slices of files, which are read when it is their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from seglog.core.errors import InvalidRequestError
from seglog.core.types import Slice


def portions(parts: Iterable[bytes | Slice], slice_bytes: Callable[[], int]) -> Iterator[list[bytes]]:
    """Parts in turn, slices of files read, ``slice_bytes`` at a time: a MiB or so, or less where many clients do not
    take theirs.

    The size of a response is out before its slices: if a file was cut meanwhile there is no way to say so but to end
    the connection, by `InvalidRequestError`.
    """
    portion: list[bytes] = []
    room = slice_bytes()
    for part in parts:
        if isinstance(part, bytes):
            portion.append(part)
            continue
        start = 0
        while start < part.size:
            if not room:
                yield portion
                portion, room = [], slice_bytes()
            piece = part.read_part(start, min(room, part.size - start))
            if not piece:
                raise InvalidRequestError("a file was cut while it was sent")
            portion.append(piece)
            start += len(piece)
            room -= len(piece)
    yield portion
