"""The same requests to a real Kafka and to ours, and their answers side by side.

What each broker makes up itself — ids of topics, members, producers, sessions — has a symbol here, a `Ref`: it stands
in requests for what each broker said, and in answers for what each broker says. All else that may differ is in `FREE`
and `LAX`, with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff
from pprint import pformat
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from seglog.protocol.apis import ApiKey
from tests.broker.running import Wire

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
    "throttle_time": "no quotas",
}
"""Fields of which only counts whether they are there."""

LAX: Final = {
    "error_message": "we say more where Kafka says nothing; where it says something the text may be another",
}
"""Fields that are not looked at unless `Side.exact` has them."""

_ORDERED_BY: Final = (
    "name",
    "topic",
    "partition_index",
    "partition",
    "index",
    "resource_name",
    "group_id",
    "producer_id",
)
_TRIES: Final = 2000
CLOSED: Final = "closed"
"""The answer of a broker that ends the connection instead."""


class Ref(NamedTuple):
    """What a broker has given itself, under the name that a test gave it."""

    symbol: str


class Side:
    """One of the brokers: its connections by name, and what it has given."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.given: dict[Ref, Any] = {}
        self._symbols: dict[Any, Ref] = {}
        self._wires: dict[str, Wire] = {}

    def wire(self, name: str = "") -> Wire:
        if name not in self._wires:
            self._wires[name] = Wire(self.bootstrap)
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
            return {name: self._field(name, found) for name, found in sorted(vars(value).items()) if name not in LAX}
        if isinstance(value, tuple):
            return in_order([self.plain(one) for one in value])
        if isinstance(value, str | int) and not isinstance(value, bool) and value in self._symbols:
            return self._symbols[value]
        return value

    def _field(self, name: str, value: Any) -> Any:
        if name == "topic_id" and value in self._symbols:
            return self._symbols[value]
        if name in FREE:
            return bool(value)
        if isinstance(value, int):
            return value if name != "producer_id" else self._symbols.get(value, value)
        return self.plain(value)


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
        *,
        wire: str = "",
        eventually: bool = False,
        **contents: Any,
    ) -> Answers:
        """Both answers as they came, after they were found alike.

        ``eventually``: Kafka's controller has answered what its broker is yet to learn: it is asked until it says what
        ours says.
        """
        self.tell(f"{key.name} v{version} {contents}")
        ours = _asked(self.ours, wire, key, version, contents)
        expected = self.ours.plain(ours)
        for _ in range(_TRIES if eventually else 1):
            real = _asked(self.real, wire, key, version, contents)
            if self.real.plain(real) == expected:
                break
        self.compare(self.real.plain(real), expected)
        return Answers(real, ours)

    def same(self, key: ApiKey, version: int | None = None, **contents: Any) -> Any:
        """What both say."""
        return self.real.plain(self.ask(key, version, **contents).real)

    def tell(self, what: str) -> None:
        self.story.append(what if len(what) < 2000 else f"{what[:2000]}...")

    def compare(self, real: Any, ours: Any) -> None:
        differences = list(unified_diff(pformat(real).splitlines(), pformat(ours).splitlines(), "Kafka", "ours", n=4))
        if differences:
            raise AssertionError("\n".join(["after", *self.story[-12:], "", *differences]))

    def learn(self, ref: Ref, answers: Answers, *path: str | int) -> None:
        """What both have given, at the same place of their answers."""
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
