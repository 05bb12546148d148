"""Texts of a configuration as Java reads them: properties files alike, login modules alike or not at all."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

from seglog.client.security.jaas import parse_jaas
from seglog.client.security.properties import parse_properties
from tests.cases import case
from tests.kafka.tools import run_java

_NUMBER: Final = 3000
_PROPERTY: Final = (
    "a",
    "b",
    " ",
    "\t",
    "\f",
    "=",
    ":",
    "#",
    "!",
    "\\",
    "\\\\",
    "\n",
    "\r",
    "\r\n",
    "\\u00e4",
    "\\u1",
    "ä",
    "\\n",
)
_JAAS: Final = (
    "a",
    "b.c",
    "required",
    "optional",
    " ",
    "=",
    ";",
    '"',
    "'",
    "\\",
    '\\"',
    "\\101",
    "\\n",
    "ä",
    "-",
    "a=b ",
    '"x y"',
)
_BEFORE: Final = "a.M required "


def texts(pieces: Sequence[str], before: str = "", after: str = "") -> list[str]:
    chance = random.Random(0)
    return [before + "".join(chance.choices(pieces, k=chance.randrange(12))) + after for _ in range(_NUMBER)]


def java(op: str, texts: Sequence[str]) -> list[dict[str, str] | None]:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"op": op, "text": text}) + "\n" for text in texts)
        file.flush()
        return [json.loads(line) for line in run_java("ClientTexts", [file.name], with_ours=True).splitlines()]


def ours(parse: Callable[[str], dict[str, str]], text: str) -> dict[str, str] | None:
    case()
    try:
        return parse(text)
    except ValueError:
        return None


def test_properties_files() -> None:
    """But for the empty key, which no reference can name: Java sees one in a backslash at the end of a file."""
    made = texts(_PROPERTY)
    different = []
    for text, its in zip(made, java("properties", made), strict=True):
        one = ours(parse_properties, text)
        for pairs in (one, its):
            (pairs or {}).pop("", None)
        if one != its:
            different.append((text, one, its))
    assert different == []


def test_login_modules() -> None:
    """Kafka takes more texts, such as words that are glued to quotes; it never reads one otherwise."""
    made = texts(_JAAS, _BEFORE, ";") + texts(_JAAS)
    answers = java("jaas", made)
    different, accepted = [], 0
    for text, its in zip(made, answers, strict=True):
        one = ours(_pairs, text)
        accepted += one is not None
        if one is not None and one != its:
            different.append((text, one, its))
    assert different == []
    assert accepted > 100


def _pairs(text: str) -> dict[str, str]:
    found = parse_jaas(text)
    return {**found.options, "": found.module}
