"""The same requests to a real Kafka and to ours, and their answers side by side.

What each broker makes up itself — ids of topics, members, producers, sessions — has a symbol here, a `Ref`: it stands
in requests for what each broker said, and in answers for what each broker says. All else that may differ is in `FREE`
with its reason, and in `Side.plain`: times at which a broker appended, and messages where Kafka has none of its own
(they are compared where they come with errors of single records).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from difflib import unified_diff
from pprint import pformat
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.protocol.apis import ApiKey
from seglog.records.batch import BATCH_OVERHEAD, CRC_START, MAGIC_POSITION, TIMESTAMP_TYPE_BIT, read_header
from tests.broker.broker_thread import Wire
from tests.kit.waiting import SECONDS

FREE: Final = {
    "topic_id": "made up by each broker",
    "cluster_id": "made up by each broker",
    "host": "where it runs",
    "port": "where it runs",
    "client_host": "where the client runs",
    "log_dir": "where it runs",
    "total_bytes": "the disk's",
    "usable_bytes": "the disk's",
    "session_id": "made up by each broker",
    "throttle_time": "a matter of milliseconds",
}
"""Fields of which only counts whether they are there."""

OWN_TIMES: Final = 1_700_000_000_000
"""Times after this are a broker's own: all that tests send lie before."""
_MAX_TIMESTAMP: Final = 35
"""Where a batch has it."""

_ORDERED_BY: Final = (
    "name",
    "topic",
    "partition_index",
    "partition",
    "index",
    "resource_name",
    "group_id",
    "member_id",
    "memberId",
    "producer_id",
    "batch_index",
    "topic_id",
    "entity_type",
    "entity",
    "key",
)
UNKNOWN_ID: Final = UUID(int=12345)
"""A topic id that no topic has."""
UNKNOWN_SESSION: Final = 987_654_321
CLOSED: Final = "closed"
"""The answer of a broker that ends the connection instead."""


class Ref(NamedTuple):
    """A symbol for a value that each broker chose itself, such as an id."""

    symbol: str


class Side:
    """One of the brokers: its connections by name, and what it has given."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.given: dict[Ref, Any] = {}
        self._symbols: dict[Any, Ref] = {}
        self._wires: dict[str, Wire] = {}

    def wire(self, name: str = "") -> Wire:
        """A name that begins with ``client-id=`` is the client's."""
        if name not in self._wires:
            _, is_named, client_id = name.partition("client-id=")
            self._wires[name] = Wire(self.bootstrap, client_id=client_id if is_named else "test")
            self._wires[name].ask(ApiKey.API_VERSIONS, 0)  # it is served from here on
        return self._wires[name]

    def drop(self, name: str = "") -> None:
        """Close a connection; the next use opens another one."""
        wire = self._wires.pop(name, None)
        if wire is not None:
            wire.__exit__(None, None, None)

    def close(self) -> None:
        for name in list(self._wires):
            self.drop(name)

    def learn(self, ref: Ref, value: Any) -> None:
        self.given[ref] = value
        self._symbols[value] = ref

    def knows(self, value: Any) -> bool:
        return value in self._symbols

    def plain_id(self, value: int) -> Any:
        """A producer id by its symbol."""
        return self._symbols.get(value, value)

    def fill(self, contents: Any) -> Any:
        """With this broker's own values for all symbols."""
        if isinstance(contents, Ref):
            return self.given[contents]
        if isinstance(contents, Mapping):
            return {name: self.fill(value) for name, value in contents.items()}
        if isinstance(contents, list | tuple):
            return [self.fill(value) for value in contents]
        return contents

    def plain(self, value: Any) -> Any:
        """An answer as something to compare."""
        if isinstance(value, SimpleNamespace):
            fields = vars(value)
            if "responses" in fields:
                fields = fields | {"responses": merged(fields["responses"])}
            return {name: self._field(name, found, fields) for name, found in sorted(fields.items())}
        if isinstance(value, tuple):
            return in_order([self.plain(one) for one in value])
        if isinstance(value, bytes) and is_batch(value):
            return without_own_times(value)
        if isinstance(value, str) and value:
            text = _MADE_UP.sub("made up", value)
            return self._symbols.get(value) or ",".join(sorted(text.split(",")))  # a list's order means nothing
        return value

    def _field(self, name: str, value: Any, fields: Mapping[str, Any]) -> Any:
        if name == "throttle_time":
            return bool(value)
        if name in FREE:
            return self._symbols.get(value, bool(value))
        if name == "producer_id":
            return self.plain_id(value)
        if name in ("log_append_time", "timestamp"):
            return value if value < OWN_TIMES else "its own"
        if name == "error_message" and not fields.get("record_errors", True):
            return None
        if name.endswith("error_message"):
            return _BOUNDS.sub("[its own]", value or "")
        return self.plain(value)


def brief(contents: Any) -> Any:
    """For a story that is read by people."""
    if isinstance(contents, Mapping):
        return {name: brief(value) for name, value in contents.items()}
    if isinstance(contents, list | tuple) and not isinstance(contents, Ref):
        return [brief(value) for value in contents]
    if isinstance(contents, bytes) and len(contents) > 40:
        return f"{len(contents)} bytes, {contents[:61].hex()}"
    if isinstance(contents, str) and len(contents) > 100:
        return f"{contents[:20]}... {len(contents)}"
    return contents.symbol if isinstance(contents, Ref) else contents


def merged(topics: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each topic of a Fetch or Produce once: Kafka restarts at a topic that is named again."""
    found: dict[Any, dict[str, Any]] = {}
    for topic in map(vars, topics):
        name = next((name for name in ("partitions", "partition_responses") if name in topic), None)
        if name is None:
            return topics
        key = topic.get("topic", topic.get("name", topic.get("topic_id")))
        before = found.setdefault(key, topic | {name: ()})
        before[name] += topic[name]
    return tuple(SimpleNamespace(**topic) for topic in found.values())


_MADE_UP: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BOUNDS: Final = re.compile(r"\[-?\d+, -?\d+\]")
"""From when to when a timestamp may be, counted from now."""


def is_batch(data: bytes) -> bool:
    return len(data) > MAGIC_POSITION and data[MAGIC_POSITION] == 2


def without_own_times(data: bytes) -> bytes:
    """Batches, the last one perhaps cut off, without the times at which a broker has appended them."""
    out = bytearray(data)
    position = 0
    stamped = False
    while len(out) - position >= BATCH_OVERHEAD:
        header = read_header(out, position)
        if stamped := bool(header.attributes & TIMESTAMP_TYPE_BIT):
            out[position + CRC_START - 4 : position + CRC_START] = bytes(4)
            out[position + _MAX_TIMESTAMP : position + _MAX_TIMESTAMP + 8] = bytes(8)
        position += header.size
    if stamped and position < len(out):
        out[position:] = bytes(len(out) - position)
    return bytes(out)


def in_order(found: list[Any]) -> list[Any]:
    """Arrays are compared in the order of what their elements are called: no broker promises another one."""
    keys = [key for key in _ORDERED_BY if found and isinstance(found[0], dict) and key in found[0]]
    return sorted(found, key=lambda one: [repr(one[key]) for key in keys]) if keys else found


class Answers(NamedTuple):
    real: Any
    ours: Any


class Both:
    """A real Kafka and ours; each request goes to both, and must be answered alike."""

    def __init__(self, real: str, ours: str) -> None:
        self.real = Side(real)
        self.ours = Side(ours)
        self.story: list[str] = []

    def close(self) -> None:
        self.real.close()
        self.ours.close()

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.real, self.ours

    def ask(
        self,
        key: ApiKey,
        version: int | None = None,
        /,
        *,
        wire: str = "",
        eventually: bool = False,
        **contents: Any,
    ) -> Answers:
        """Both answers as they came, after they were found alike.

        ``eventually``: Kafka's controller has answered what its broker is yet to learn: it is asked until it says what
        ours says.
        """
        self.tell(f"{key.name} v{version} {brief(contents)}")
        ours = _asked(self.ours, wire, key, version, contents)
        expected = self.ours.plain(ours)
        deadline = time.monotonic() + SECONDS
        real = _asked(self.real, wire, key, version, contents)
        while eventually and self.real.plain(real) != expected and time.monotonic() < deadline:
            real = _asked(self.real, wire, key, version, contents)
        self.compare(self.real.plain(real), expected)
        return Answers(real, ours)

    def send(self, key: ApiKey, version: int, /, **contents: Any) -> None:
        """Send a request that gets no answer, and compare whether the connection stays open."""
        self.tell(f"{key.name} v{version} {brief(contents)}")
        stays = []
        for side in self.sides:
            connection = side.wire()
            connection.send(key, version, **side.fill(contents))
            try:
                connection.ask(ApiKey.API_VERSIONS, 0)
                stays.append(True)
            except ConnectionError:
                side.drop()
                stays.append(False)
        self.compare(*stays)

    def same(self, key: ApiKey, version: int | None = None, /, **contents: Any) -> Any:
        """The answer of both brokers, which must be the same."""
        return self.real.plain(self.ask(key, version, **contents).real)

    def tell(self, what: str) -> None:
        self.story.append(what)

    def compare(self, real: Any, ours: Any) -> None:
        differences = list(unified_diff(pformat(real).splitlines(), pformat(ours).splitlines(), "Kafka", "ours", n=4))
        if differences:
            raise AssertionError("\n".join(["after", *self.story[-12:], "", *differences]))

    def learn(self, ref: Ref, answers: Answers, *path: str | int) -> None:
        """Remember the value at ``path`` of each broker's answer under ``ref``."""
        for side, answer in zip(self.sides, answers, strict=True):
            for step in path:
                answer = answer[step] if isinstance(step, int) else getattr(answer, step)
            side.learn(ref, answer)


def _asked(side: Side, wire: str, key: ApiKey, version: int | None, contents: Mapping[str, Any]) -> Any:
    try:
        return side.wire(wire).ask(key, version, **side.fill(contents))
    except ConnectionError:
        side.drop(wire)
        return CLOSED
