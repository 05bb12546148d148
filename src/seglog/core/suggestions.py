"""The known name nearest to one that a user misspelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_PREFIX: Final = 3
"""The fewest characters that a name may be cut off after."""


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """``; did you mean …?`` with the nearest of ``known``, in any case, or the shortest that begins with ``word``;
    empty if none is near. Dashes before options do not count.

    >>> did_you_mean("lastest", ["earliest", "latest"]), did_you_mean("17", ["earliest", "latest"])
    ('; did you mean latest?', '')
    >>> did_you_mean("--boot", ["--bootstrap-server", "--json"]), did_you_mean("--nope", ["--codec", "--json"])
    ('; did you mean --bootstrap-server?', '')
    """
    import difflib  # takes long to load

    by_lower = {name.lower().lstrip("-"): name for name in known}
    wanted = word.strip().lower().lstrip("-")
    near = difflib.get_close_matches(wanted, by_lower, n=1, cutoff=cutoff) or sorted(
        (name for name in by_lower if len(wanted) >= _PREFIX and name.startswith(wanted)), key=len
    )
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
