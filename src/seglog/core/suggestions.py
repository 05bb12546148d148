"""The known name nearest to one that a user misspelled."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """``; did you mean …?`` with the nearest of ``known``, in any case; empty if none is near.

    >>> did_you_mean("lastest", ["earliest", "latest"]), did_you_mean("17", ["earliest", "latest"])
    ('; did you mean latest?', '')
    """
    import difflib  # takes long to load

    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.strip().lower(), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
