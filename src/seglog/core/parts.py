"""A long list in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def in_parts(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """
    >>> list(in_parts("abcde", 2))
    [('a', 'b'), ('c', 'd'), ('e',)]
    """
    left = iter(items)
    while part := tuple(islice(left, size)):
        yield part
