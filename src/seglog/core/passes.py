"""A pass over many things, of which one may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from seglog.core.errors import SeglogError

Of = TypeVar("Of")


def for_each(items: Iterable[Of], act: Callable[[Of], object]) -> list[tuple[Of, SeglogError]]:
    """Call ``act`` with each of ``items``. One that fails does not keep the others from their turn.

    Returns those that failed, in order. Other errors than a `SeglogError` are bugs, and end the pass.
    """
    failed: list[tuple[Of, SeglogError]] = []
    for item in items:
        try:
            act(item)
        except SeglogError as error:
            failed.append((item, error))
    return failed


def raise_first(failed: Iterable[tuple[Of, SeglogError]]) -> None:
    """Raise the first error of a pass, after it; a note on it has the number of the others."""
    errors = [error for _, error in failed]
    if errors:
        if len(errors) > 1:
            errors[0].add_note(f"{len(errors) - 1} others of the same pass failed, too")
        raise errors[0]
