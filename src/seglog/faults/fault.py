"""A fault: the requests that meet it, its effect, and a report of both. Values only: `seglog.faults.fault_layer`
carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple, get_args

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.protocol.apis import APIS, ApiKey, name_of

Effect = Literal["error", "lose", "delay", "cut", "throttle", "reorder", "refuse"]
Ending = Literal["close", "reset", "hang"]
_APPLIES_AT_FIRST: Final = frozenset({"lose", "delay", "cut", "throttle", "reorder"})
"""Effects for which the broker carries the request out unless the fault says otherwise."""
_KEYS: Final[Mapping[str, int]] = {name_of(key).lower(): int(key) for key in APIS}


class FaultError(SeglogError):
    """A fault that cannot be: an unknown API or field, or an error for an answer that has no place for it."""


class Request(NamedTuple):
    """A request as a ``where`` function gets it. ``body`` has its fields by Kafka's names in snake case.

    ``topics`` has pairs of a topic and a partition, or None for the whole topic. ``connection`` counts the broker's
    connections from 1.
    """

    api: str
    version: int
    client_id: str
    connection: int
    correlation_id: int
    topics: frozenset[tuple[str, int | None]]
    groups: frozenset[str]
    transactional_ids: frozenset[str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Requests to ``api`` (any, if it is None) that also match every other field that is given.

    ``nth`` is the first matching request that meets the fault, ``times`` how many do (None: all from there on). With
    ``probability``, a generator with ``seed`` decides for each of them. ``where`` decides last; it gets a `Request`.
    Requests of other brokers match only with ``peers``.

    ======== ==========================================================================================================
    effect   meaning
    ======== ==========================================================================================================
    error    ``error`` in the answer, for the named topic and partition or for everything in the request
    lose     no answer; then the connection ends as ``then`` says
    delay    the answer, or with ``applied=False`` the request, waits ``seconds`` of the broker's clock
    cut      the first ``size`` bytes of the answer; then the connection ends as ``then`` says
    throttle ``throttle_time_ms`` in the answer is ``seconds``
    reorder  requests are held until ``count`` of them are there or ``seconds`` have passed, and applied in
             reversed order, or in the order that ``seed`` gives
    refuse   new connections are reset at once; ``api`` and what a request names do not count
    ======== ==========================================================================================================

    ``applied`` says whether the broker carries out the request. By default an error is not applied, and everything else
    is. ``then``: ``close``, ``reset`` (RST), or ``hang``, which answers nothing more. ``whole`` sets the error of the
    whole answer, where the answer also has errors for its entries.
    """

    effect: Effect
    api: str | None = None
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    transactional_id: str | None = None
    client_id: str | None = None
    connection: int | None = None
    version: int | None = None
    where: Callable[[Request], bool] | None = None
    peers: bool = False
    nth: int = 1
    times: int | None = 1
    probability: float | None = None
    seed: int | None = None
    error: int = 0
    seconds: float = 0.0
    size: int = 0
    count: int = 2
    then: Ending = "close"
    applied: bool | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        """`FaultError` for values that cannot be."""
        self._check(self.effect in get_args(Effect), f"there is no effect {self.effect!r}")
        self._check(self.then in get_args(Ending), f"a connection cannot end with {self.then!r}")
        self._check(self.api is None or self.api.lower() in _KEYS, f"there is no API {self.api!r} here")
        self._check(self.nth >= 1, f"nth is {self.nth}: the first request is 1")
        self._check(self.times is None or self.times >= 1, f"times is {self.times}: use None for always")
        self._check(self.probability is None or 0 <= self.probability <= 1, f"probability is {self.probability}")
        self._check(self.seconds >= 0 and self.size >= 0, "seconds and size are not negative")
        self._check(self.count >= 2, f"{self.count} requests have only one order")
        self._check(self.effect != "error" or self.error != ErrorCode.NONE, "an error needs its code")
        self._check(self.effect != "cut" or self.is_applied, "only an answer that exists can be cut: use lose")

    @staticmethod
    def _check(is_right: bool, why: str) -> None:
        if not is_right:
            raise FaultError(why)

    @property
    def key(self) -> int | None:
        """The API's key, or None for any."""
        return None if self.api is None else _KEYS[self.api.lower()]

    @property
    def is_applied(self) -> bool:
        return self.effect in _APPLIES_AT_FIRST if self.applied is None else self.applied

    @property
    def names_topic(self) -> bool:
        return self.topic is not None or self.partition is not None

    @property
    def may_meet_fetch(self) -> bool:
        """Whether a Fetch can match: it names neither groups nor transactional ids."""
        return self.key in (None, ApiKey.FETCH) and self.group is None and self.transactional_id is None

    def has(self, topic: str, partition: int | None) -> bool:
        """Whether the fault is about this partition; None stands for all of the topic's."""
        if self.topic is not None and self.topic != topic:
            return False
        return self.partition is None or partition is None or self.partition == partition

    def may_match(self, api: str, version: int, client_id: str, connection: int) -> bool:
        """Whether a request with such a header can match. What it names decides next, in `matches`."""
        return (
            (self.api is None or self.api.lower() == api.lower())
            and self.client_id in (None, client_id)
            and self.connection in (None, connection)
            and self.version in (None, version)
        )

    def matches(self, request: Request) -> bool:
        """Whether the request names what the fault names. ``nth`` and ``times`` do not count here."""
        return (
            self.may_match(request.api, request.version, request.client_id, request.connection)
            and (not self.names_topic or any(self.has(*one) for one in request.topics))
            and (self.group is None or self.group in request.groups)
            and (self.transactional_id is None or self.transactional_id in request.transactional_ids)
            and (self.where is None or self.where(request))
        )

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults. `FaultError` for a ``where``, which stays in its process."""
        if self.where is not None:
            raise FaultError("a `where` function works only with a broker in a thread of this program")
        found = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        if self.error:
            found["error"] = ErrorCode(self.error).name
        return found


FIELD_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("effect", "api", "topic", "group", "transactional_id", "client_id", "then"), (str,)),
    **dict.fromkeys(("partition", "connection", "version", "nth", "times", "seed", "size", "count"), (int,)),
    **dict.fromkeys(("probability", "seconds"), (int, float)),
    **dict.fromkeys(("peers", "applied", "whole"), (bool,)),
    "error": (int, str),
}
"""The types of a fault's fields in JSON."""
MAY_BE_NULL: Final = frozenset(one.name for one in fields(Fault) if one.default is None) | {"times"}


def fault_from_json(document: Mapping[str, Any]) -> Fault:
    """The fault of a JSON object with the fields of `Fault`. `FaultError` if it is none."""
    values = dict(document)
    for name, value in values.items():
        types = FIELD_TYPES.get(name)
        if types is None:
            raise FaultError(f"a fault has no field {name!r}")
        is_null = value is None and name in MAY_BE_NULL
        if not is_null and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            raise FaultError(f"{name} cannot be {value!r}")
    if "effect" not in values:
        raise FaultError("a fault needs its effect")
    if "error" in values:
        values["error"] = error_code(values["error"])
    return Fault(**values)


def error_code(error: int | str) -> int:
    """A code from Kafka's name or number.

    >>> error_code("NOT_LEADER_OR_FOLLOWER"), error_code(6)
    (6, 6)
    """
    try:
        return int(ErrorCode[error.upper()] if isinstance(error, str) else ErrorCode(error))
    except (KeyError, ValueError):
        raise FaultError(f"Kafka has no error {error!r}") from None


API_VERSIONS: Final = int(ApiKey.API_VERSIONS)


class MetRequest(NamedTuple):
    """A request that met a fault."""

    api: str
    version: int
    client_id: str
    connection: int
    correlation_id: int


class FaultReport(NamedTuple):
    """``seen`` requests matched, ``fired`` of them met the fault; ``met`` has the last of these. ``problem`` says why
    the fault could not be shown to a request."""

    fault_id: int
    fault: Fault
    seen: int
    fired: int
    met: tuple[MetRequest, ...]
    problem: str | None
