"""Documents as texts of a limited size, which say where to go on. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from seglog.cli.output import json_text

Document = dict[str, Any]
MOST_CHARACTERS: Final = 30_000
_NOTE: Final = 400
"""Characters for ``next`` and ``cut``."""
_CUTS: Final = ((4000, 200), (1000, 100), (200, 40), (40, 10))
"""Characters of a text and items of a list that are left; each pair is tried after the one before."""
_DEEP: Final = 30


class Answer(NamedTuple):
    """``document[rows]`` is the list that an answer may cut. ``next_after`` gets the number of rows that are shown, and
    returns the value to ask for next, None at the end."""

    document: Document
    rows: str
    next_after: Callable[[int], int | None]

    def text(self) -> str:
        """The document with ``next``; ``cut`` says that texts or lists were shortened, or that rows were left out."""
        rows = self.document[self.rows]
        whole = _json({**self.document, "next": self.next_after(len(rows))})
        if len(whole) <= MOST_CHARACTERS:
            return whole
        head, is_cut = _shortened({**self.document, self.rows: []}, MOST_CHARACTERS // 2)
        if not isinstance(head, dict):
            head = {"head": head}
        left = MOST_CHARACTERS - len(_json(head)) - _NOTE
        shown: list[Any] = []
        for row in rows:
            size = len(_json(row)) + 1
            if size > left and not shown:  # go on with the row after it, or there would be no end
                row, is_cut = _shortened(row, left)
                size = left
            if size > left:
                break
            left -= size
            shown.append(row)
        cut = f"{len(rows) - len(shown)} rows were left out: an answer has at most {MOST_CHARACTERS} characters"
        if is_cut:
            cut += "; long texts and lists were shortened"
        return _json({**head, self.rows: shown, "next": self.next_after(len(shown)), "cut": cut})


def page(document: Document, rows: str, found: list[Any], first: int, count: int) -> Answer:
    """An answer with ``count`` rows from ``first`` on; ``next`` is the number of the row after them."""
    total = len(found)
    document = {**document, "total": total, "first": first, rows: found[first : first + count]}
    return Answer(document, rows, lambda shown: first + shown if first + shown < total else None)


def _json(value: object) -> str:
    return visible(json_text(value))


def visible(text: str) -> str:
    r"""Characters that are not printable as escapes, which in JSON is the same text. Such characters reorder or hide
    what stands beside them.

    >>> print(visible("tea \u202e \U000e0041"))
    tea \u202e \udb40\udc41
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _shortened(value: Any, most: int) -> tuple[Any, bool]:
    """A value of at most ``most`` characters as JSON, and whether it differs. Texts and lists lose their ends."""
    if len(_json(value)) <= most:
        return value, False
    for characters, items in _CUTS:
        found = _cut(value, characters, items, _DEEP)
        if len(_json(found)) <= most:
            return found, True
    return f"… ({len(_json(value))} characters of JSON)", True


def _cut(value: Any, characters: int, items: int, depth: int) -> Any:
    """
    >>> _cut({"a": "tea" * 3, "b": [1, 2, 3]}, 4, 2, 9)
    {'a': 'teat… (9 characters)', 'b': [1, 2, '… (3 items)']}
    """
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[:characters]}… ({len(value)} characters)"
    if depth == 0:
        return "…"
    if isinstance(value, list):
        more = [f"… ({len(value)} items)"] if len(value) > items else []
        return [*(_cut(one, characters, items, depth - 1) for one in value[:items]), *more]
    if isinstance(value, dict):
        more_keys = {"…": f"{len(value)} names"} if len(value) > items else {}
        kept = list(value.items())[:items]
        return {str(name)[:characters]: _cut(one, characters, items, depth - 1) for name, one in kept} | more_keys
    return value
