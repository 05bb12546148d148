"""Partitions as the commands name them: `TOPIC`, `TOPIC:0,2-4`, or in a JSON file of Kafka's own tools.

{"version": 1, "partitions": [{"topic": "t", "partition": 0, …}]}    with "offset" or "replicas", by the tool
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seglog.cli.wire import clients as wire
from seglog.cluster.moves import Place
from seglog.core.errors import RequestFailedError
from seglog.core.fs import OsFs

_VERSION = 1


def read_partitions(path: str, field: str | None) -> dict[Place, Any]:
    """Each partition's ``field`` (True without one), of a file, or with `-` of standard input. `ValueError` names the
    file and the entry."""
    text = sys.stdin.buffer.read() if path == "-" else OsFs().read(path)
    try:
        document = json.loads(text)
        version = document.get("version", _VERSION)
        entries = document["partitions"]
        if version != _VERSION:
            raise ValueError(f"{path}: version {version} is unknown, {_VERSION} is expected")
        found: dict[Place, Any] = {}
        for number, entry in enumerate(entries):
            place, value = _entry(entry, field, f"{path}, partitions[{number}]")
            if place in found:
                raise ValueError(f"{path}, partitions[{number}]: {place[0]}-{place[1]} stands there twice")
            found[place] = value
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as error:
        shape = '{"version": 1, "partitions": […]}'
        raise ValueError(f"{path} is not a document of the form {shape}: {error!r}") from error
    return found


def _entry(entry: Mapping[str, Any], field: str | None, where: str) -> tuple[Place, Any]:
    for key in ("topic", "partition", *([field] if field else [])):
        if key not in entry:
            raise ValueError(f"{where}: {key!r} is missing")
    topic, number = entry["topic"], entry["partition"]
    if not isinstance(topic, str) or type(number) is not int or number < 0:
        raise ValueError(f"{where}: {topic!r}, {number!r} is not a topic and a partition's number")
    return (topic, number), True if field is None else entry[field]


def partitions_document(partitions: Mapping[Place, Mapping[str, object]]) -> dict[str, object]:
    """What `read_partitions` reads, with these fields of each partition."""
    entries = [{"topic": topic, "partition": number, **more} for (topic, number), more in sorted(partitions.items())]
    return {"version": _VERSION, "partitions": entries}


def named_partitions(there: Mapping[str, Sequence[int]], given: Iterable[str], option: str) -> list[Place]:
    """``TOPIC`` or ``TOPIC:0,2-4``, of topics that are ``there``. `RequestFailedError` if one is not."""
    found: dict[Place, None] = {}
    for text in given:
        topic, colon, which = text.partition(":")
        if topic not in there:
            raise RequestFailedError(f"topic {topic}: there is no such topic")
        for number in wire.numbers([which], option) if colon else there[topic]:
            if number not in there[topic]:
                raise RequestFailedError(f"topic {topic}: there is no partition {number}")
            found[topic, number] = None
    return list(found)
