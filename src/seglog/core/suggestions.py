"""The known name nearest to one that a user misspelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_PREFIX: Final = 3
"""The fewest characters that a name may be cut off after."""
_WHOLE: Final = 0.8
"""How near a dotted name must be if its first part differs: the parts that all such names share say nothing."""


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """``; did you mean …?`` with the nearest of ``known``, in any case, or the shortest that begins with ``word``;
    empty if none is near. Dashes before options do not count, nor does the first part of a dotted name.

    >>> did_you_mean("lastest", ["earliest", "latest"]), did_you_mean("17", ["earliest", "latest"])
    ('; did you mean latest?', '')
    >>> did_you_mean("--boot", ["--bootstrap-server", "--json"]), did_you_mean("--nope", ["--codec", "--json"])
    ('; did you mean --bootstrap-server?', '')
    >>> did_you_mean("kafka.bootstrap.server", ["kafka.bootstrap.servers"]), did_you_mean("kafka.other", ["kafka.acks"])
    ('; did you mean kafka.bootstrap.servers?', '')
    """
    wanted = _bare(word)
    names = {_bare(name): name for name in known}
    head, dot, rest = wanted.partition(".")
    if dot and (
        siblings := {name[len(head) + 1 :]: whole for name, whole in names.items() if name.startswith(head + dot)}
    ):
        found = _nearest(rest, siblings, cutoff)
    else:
        found = _nearest(wanted, names, max(cutoff, _WHOLE) if dot else cutoff)
    return f"; did you mean {found}?" if found else ""


def _bare(name: str) -> str:
    return name.strip().lower().lstrip("-")


def _nearest(word: str, names: Mapping[str, str], cutoff: float) -> str | None:
    import difflib  # takes long to load

    near = difflib.get_close_matches(word, names, n=1, cutoff=cutoff) or sorted(
        (name for name in names if len(word) >= _PREFIX and name.startswith(word)), key=len
    )
    return names[near[0]] if near else None
