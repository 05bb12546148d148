"""Partitions as the commands name them: `TOPIC`, `TOPIC:0,2-4`, or in a JSON file of Kafka's own tools.

{"version": 1, "partitions": [{"topic": "t", "partition": 0, …}]}    with "offset" or "replicas", by the tool
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seglog.cli.options import OptionError
from seglog.cluster.reassignment_plan import Place
from seglog.core.errors import RequestFailedError
from seglog.core.fs import OsFs

_VERSION = 1


def read_partitions(path: str, field: str | None) -> dict[Place, Any]:
    """Each partition's ``field`` (True without one), from a file, or with `-` from standard input. Raises `OptionError`
    with the file and the entry."""
    text = sys.stdin.buffer.read() if path == "-" else OsFs().read(path)
    try:
        document = json.loads(text)
        version = document.get("version", _VERSION)
        entries = document["partitions"]
        if version != _VERSION:
            raise OptionError(f"{path}: unknown version {version}; seglog reads version {_VERSION}")
        found: dict[Place, Any] = {}
        for number, entry in enumerate(entries):
            place, value = _entry(entry, field, f"{path}, partitions[{number}]")
            if place in found:
                raise OptionError(f"{path}, partitions[{number}]: {place[0]}-{place[1]} is listed twice")
            found[place] = value
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as error:
        shape = '{"version": 1, "partitions": […]}'
        raise OptionError(f"{path} is not a document of the form {shape}: {error!r}") from error
    return found


def _entry(entry: Mapping[str, Any], field: str | None, where: str) -> tuple[Place, Any]:
    for key in ("topic", "partition", *([field] if field else [])):
        if key not in entry:
            raise OptionError(f"{where}: {key!r} is missing")
    topic, number = entry["topic"], entry["partition"]
    if not isinstance(topic, str) or type(number) is not int or number < 0:
        raise OptionError(f"{where}: {topic!r}, {number!r} is not a topic and a partition number")
    return (topic, number), True if field is None else entry[field]


def partitions_document(partitions: Mapping[Place, Mapping[str, object]]) -> dict[str, object]:
    """The document of which `read_partitions` reads these fields."""
    entries = [{"topic": topic, "partition": number, **more} for (topic, number), more in sorted(partitions.items())]
    return {"version": _VERSION, "partitions": entries}


def named_partitions(there: Mapping[str, Sequence[int]], given: Iterable[str], option: str) -> list[Place]:
    """``TOPIC`` or ``TOPIC:0,2-4``, of the topics ``there``. Raises `RequestFailedError` if one does not exist."""
    found: dict[Place, None] = {}
    for text in given:
        topic, colon, which = text.partition(":")
        if topic not in there:
            raise RequestFailedError(f"topic {topic} does not exist")
        numbers = partition_numbers([which], option) if colon else there[topic]
        check_partitions(there, [(topic, number) for number in numbers])
        found |= dict.fromkeys((topic, number) for number in numbers)
    return list(found)


def check_partitions(there: Mapping[str, Sequence[int]], places: Iterable[Place]) -> None:
    """Raise `RequestFailedError` for the first partition that does not exist."""
    for topic, number in places:
        if number not in there.get(topic, ()):
            raise RequestFailedError(f"topic {topic} has no partition {number}")


def partition_numbers(given: Sequence[str] | None, option: str) -> list[int]:
    """Partitions: ``0,2`` or ``0-3``; the option may be given several times.

    >>> partition_numbers(["0,2", "4-6"], "--partitions")
    [0, 2, 4, 5, 6]
    """
    found: list[int] = []
    for part in (part for text in given or () for part in text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise OptionError(f"{option}: {part!r} is not a partition number")
        found.extend(range(int(first), int(last or first) + 1))
    return found
