"""The operations of the console: one table, from which requests are checked and the OpenAPI document is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

import seglog
from seglog.cli.offline.verify import as_document as verify_document
from seglog.cli.options import OptionError, parse_time
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.configs import ConfigEntity, read_configs
from seglog.cli.wire.groups import listed_groups
from seglog.console import changes
from seglog.console.disk import Disk, Replica
from seglog.console.live import Live
from seglog.console.records import MOST_BYTES, SHOWN_BYTES, Extent, Filter, Reader, check_filter, commands, from_disk
from seglog.console.typed_values import TypedValues
from seglog.core.clock import Clock
from seglog.core.errors import RequestFailedError, SeglogError

_MOST_ROWS: Final = 500
_MOST_TEXT: Final = 2000


class Parameter(NamedTuple):
    """A value of a request. ``kind``: string, integer, boolean, or array (of a body alone); a time is text that
    `parse_time` reads."""

    kind: str = "string"
    note: str = ""
    is_required: bool = False
    default: Any = None
    least: int = 0
    most: int = 2**63 - 1
    choices: tuple[str, ...] = ()


class Operation(NamedTuple):
    """``needs``: disk or brokers, if the console must have been given them. ``changes``: it needs ``--write``, and its
    values are the fields of a JSON object."""

    summary: str
    act: Callable[[Console, Mapping[str, Any]], Any]
    parameters: Mapping[str, Parameter] = {}
    needs: str = ""
    changes: bool = False


class ApiError(SeglogError):
    """A request that has no answer, with the status of HTTP."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Console:
    """What one console shows: directories, a cluster, or both. ``writes``: whether it may change anything."""

    def __init__(
        self,
        clock: Clock,
        *,
        disk: Disk | None,
        cluster: Cluster | None,
        live: Live | None,
        typed: TypedValues,
        bootstrap: str | None,
        writes: bool = False,
        command: str = "console",
    ) -> None:
        self.clock = clock
        self._command = command
        self._disk = disk
        self._cluster = cluster
        self._live = live
        self.typed = typed
        self.bootstrap = bootstrap
        self.writes = writes

    @property
    def disk(self) -> Disk:
        if self._disk is None:
            reason = f"seglog {self._command} was started without a directory: seglog {self._command} PATH"
            raise ApiError(HTTPStatus.CONFLICT, reason)
        return self._disk

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            raise self._without_brokers()
        return self._cluster

    @property
    def live(self) -> Live:
        if self._live is None:
            raise self._without_brokers()
        return self._live

    def _without_brokers(self) -> ApiError:
        reason = f"seglog {self._command} was started without brokers: seglog {self._command} -b HOST:PORT"
        return ApiError(HTTPStatus.CONFLICT, reason)

    @property
    def has_disk(self) -> bool:
        return self._disk is not None

    @property
    def has_brokers(self) -> bool:
        return self._cluster is not None


def _about(console: Console, _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "version": seglog.__version__,
        "directories": console.disk.roots if console.has_disk else [],
        "bootstrap": console.bootstrap,
        "writes": console.writes,
        "now": console.clock.now_ms(),
    }


def _replica(console: Console, given: Mapping[str, Any]) -> Replica:
    return console.disk.replica(given["topic"], given["partition"], given["root"])


def read_partition(console: Console, given: Mapping[str, Any]) -> Any:
    config = None
    if console.has_brokers:
        try:
            found = read_configs(console.cluster, ConfigEntity("topic", given["topic"]))
            config = {one.name: one.value for one in found if one.value is not None}
        except RequestFailedError:
            config = None  # no broker answers, or not of this topic: the directory says as much as it knows
    return console.disk.partition(given["topic"], given["partition"], given["root"], config)


def _batches(console: Console, given: Mapping[str, Any]) -> Any:
    return console.disk.batches(
        _replica(console, given), given["base"], offset=given["offset"], position=given["position"], most=given["count"]
    )


def _bytes(console: Console, given: Mapping[str, Any]) -> Any:
    replica, base, kind = _replica(console, given), given["base"], given["of"]
    if kind == "batch":
        return console.disk.batch_bytes(replica, base, given["position"], given["count"])
    if kind == "record":
        return console.disk.record_bytes(replica, base, given["position"], given["number"], given["count"])
    return console.disk.entry_bytes(replica, base, kind, given["number"])


def look_up(console: Console, given: Mapping[str, Any]) -> Any:
    offset, time = given["offset"], given["time"]
    if (offset is None) == (time is None):
        raise OptionError("a look-up needs either offset or time")
    return console.disk.look_up(_replica(console, given), offset, None if time is None else read_time(console, time))


def _verify(console: Console, given: Mapping[str, Any]) -> Any:
    return verify_document(console.disk.verify(_replica(console, given)))


def read_records(console: Console, given: Mapping[str, Any]) -> Any:
    since, until = given["since"], given["until"]
    wanted = check_filter(
        Filter(
            given["key"] or None,
            given["value"] or None,
            given["header"] or None,
            given["path"] or None,
            read_time(console, since) if since else None,
            read_time(console, until) if until else None,
        )
    )
    topic, partition, offset, count = given["topic"], given["partition"], given["offset"], given["count"]
    extent = Extent(count, given["bytes"] or (SHOWN_BYTES if count > 1 else MOST_BYTES))
    source = given["from"] or ("disk" if console.has_disk else "brokers")
    path = None
    if source == "disk":
        replica = _replica(console, given)
        path = replica.path
        offset = _from_end(offset, count, lambda: console.disk.bounds(replica)[1])
        found = from_disk(console.disk, console.clock, console.typed, replica, offset, extent, wanted)
    else:
        place = (topic, partition)
        offset = _from_end(offset, count, lambda: console.cluster.ends([place])[place])
        found = Reader(console.cluster, console.clock, console.typed).read(
            topic, partition, offset, extent, wanted, given["isolation"]
        )
    shown = found["records"][0]["offset"] if found["records"] else max(offset, 0)
    return {**found, "commands": commands(topic, partition, shown, console.bootstrap, path)}


def _from_end(offset: int | None, count: int, end: Callable[[], int]) -> int:
    """None: the last ``count`` offsets."""
    return max(end() - count, 0) if offset is None else offset


def read_time(console: Console, text: str) -> int:
    """ms since 1970. `OptionError`."""
    try:
        return parse_time(text, console.clock)
    except ValueError:
        raise OptionError(f"{text!r} is not a time: give ms since 1970, 2013-01-01T05:00:00Z, or -1h") from None


def _groups(console: Console, _: Mapping[str, Any]) -> Any:
    return {"groups": [one._asdict() for one in listed_groups(console.cluster)]}


def _produce(console: Console, given: Mapping[str, Any]) -> Any:
    headers = given["headers"] or []
    if not all(
        isinstance(one, list) and len(one) == 2 and all(isinstance(text, str) for text in one) for one in headers
    ):
        raise OptionError("headers must be pairs of texts")
    return changes.produce(console.cluster, given["topic"], given["partition"], given["key"], given["value"], headers)


def _reset(console: Console, given: Mapping[str, Any]) -> Any:
    return changes.reset(
        console.cluster, given["group"], [given["topic"]], given["mode"], given["value"] or "", execute=given["execute"]
    )


_PLACE: Final = {
    "topic": Parameter(is_required=True),
    "partition": Parameter("integer", is_required=True, most=2**31 - 1),
    "root": Parameter("integer", "The number of the log directory; the first that has the partition.", most=10_000),
}
_PAGE: Final = {
    "filter": Parameter(note="Text that TOPIC-PARTITION contains.", default=""),
    "first": Parameter("integer", default=0),
    "count": Parameter("integer", default=100, least=1, most=_MOST_ROWS),
}
_BASE: Final = Parameter("integer", "The segment's base offset.", is_required=True)

OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("GET", "/api/about"): Operation("What the console was started with.", _about),
    ("GET", "/api/partitions"): Operation(
        "A page of the partitions in the directories.",
        lambda console, given: console.disk.partitions(given["filter"], given["first"], given["count"]),
        _PAGE,
        "disk",
    ),
    ("GET", "/api/partition"): Operation(
        "A partition's segments, marks, epochs, transactions, retention and replicas.", read_partition, _PLACE, "disk"
    ),
    ("GET", "/api/index"): Operation(
        "The entries of a segment's indexes; each n-th if there are more than count.",
        lambda console, given: console.disk.index(
            _replica(console, given), given["base"], given["count"], given["around"]
        ),
        {
            **_PLACE,
            "base": _BASE,
            "count": Parameter("integer", default=1000, least=1, most=5000),
            "around": Parameter("integer", "Only the entries around this slot."),
        },
        "disk",
    ),
    ("GET", "/api/batches"): Operation(
        "Batches of a segment, from a position or from the batch of an offset.",
        _batches,
        {
            **_PLACE,
            "base": _BASE,
            "offset": Parameter("integer"),
            "position": Parameter("integer", "Where a batch begins."),
            "count": Parameter("integer", default=200, least=1, most=_MOST_ROWS),
        },
        "disk",
    ),
    ("GET", "/api/bytes"): Operation(
        "Bytes of a batch, a record or an index entry, with the names of their fields.",
        _bytes,
        {
            **_PLACE,
            "base": _BASE,
            "of": Parameter(default="batch", choices=("batch", "record", "index", "timeindex", "txnindex")),
            "position": Parameter("integer", "Where the batch begins.", default=0),
            "number": Parameter("integer", "The record in the batch, or the slot of the index.", default=0, most=2**31),
            "count": Parameter("integer", "The most bytes.", default=512, least=1, most=65_536),
        },
        "disk",
    ),
    ("GET", "/api/lookup"): Operation(
        "Find a record by offset or time, with each step, as seglog find --explain.",
        look_up,
        {**_PLACE, "offset": Parameter("integer"), "time": Parameter(note="ms since 1970, ISO 8601, or -1h")},
        "disk",
    ),
    ("GET", "/api/verify"): Operation("Check every byte of a partition of up to 1 GiB.", _verify, _PLACE, "disk"),
    ("GET", "/api/records"): Operation(
        "Records from an offset on that match all filters; next is the offset to go on from.",
        read_records,
        {
            **_PLACE,
            "from": Parameter(choices=("disk", "brokers")),
            "offset": Parameter("integer", "The first offset; without it the last count offsets."),
            "count": Parameter("integer", default=50, least=1, most=_MOST_ROWS),
            "key": Parameter(note="Text in the key."),
            "value": Parameter(note="Text in the value."),
            "header": Parameter(note="NAME or NAME=TEXT."),
            "path": Parameter(note="A path in a JSON value, PATH or PATH=VALUE: order.items.0.id=7"),
            "since": Parameter(note="The earliest timestamp: ms since 1970, ISO 8601, or -1h."),
            "until": Parameter(note="The latest timestamp."),
            "bytes": Parameter(
                "integer",
                f"The most bytes of a key, a value or a header; without it {SHOWN_BYTES}, of one record {MOST_BYTES}.",
                least=1,
                most=MOST_BYTES,
            ),
            "isolation": Parameter(default="read_uncommitted", choices=("read_uncommitted", "read_committed")),
        },
    ),
    ("GET", "/api/cluster"): Operation(
        "The cluster as seglog cluster status --json, with a page of its partitions, unhealthy ones first.",
        lambda console, given: console.live.status(given["filter"], given["first"], given["count"]),
        _PAGE,
        "brokers",
    ),
    ("GET", "/api/history"): Operation(
        "Throughput, lag of groups, and events since a time.",
        lambda console, given: console.live.history(given["since"]),
        {"since": Parameter("integer", "ms since 1970", default=0)},
        "brokers",
    ),
    ("GET", "/api/groups"): Operation("All groups, as seglog groups list.", _groups, {}, "brokers"),
    ("GET", "/api/group"): Operation(
        "Offsets, lag, readable lag and members of a group.",
        lambda console, given: console.live.group(given["group"]),
        {"group": Parameter(is_required=True)},
        "brokers",
    ),
    ("POST", "/api/produce"): Operation(
        "Send one record.",
        _produce,
        {
            "topic": Parameter(is_required=True),
            "partition": Parameter("integer", most=2**31 - 1),
            "key": Parameter(),
            "value": Parameter(note="Without it a tombstone."),
            "headers": Parameter("array", "Pairs of name and text."),
        },
        "brokers",
        changes=True,
    ),
    ("POST", "/api/reset"): Operation(
        "The new offsets of a group; they are committed only with execute.",
        _reset,
        {
            "group": Parameter(is_required=True),
            "topic": Parameter(note="TOPIC, or TOPIC:0,2-4", is_required=True),
            "mode": Parameter(is_required=True, choices=("earliest", "latest", "offset", "shift", "time")),
            "value": Parameter(note="Of offset, shift and time."),
            "execute": Parameter("boolean", default=False),
        },
        "brokers",
        changes=True,
    ),
}


def values(operation: Operation, query: str, body: bytes) -> dict[str, Any]:
    """The values of a request, checked. `OptionError` names the one that is wrong."""
    if operation.changes:
        try:
            given = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise OptionError(f"the body is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise OptionError("the body is not a JSON object")
    else:
        parsed = parse_qs(query, keep_blank_values=True, max_num_fields=50)
        given = {name: _parsed(operation.parameters.get(name), name, texts[-1]) for name, texts in parsed.items()}
    return checked(operation.parameters, given)


def checked(parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """All values, with defaults. `OptionError` names the one that is wrong."""
    for name in given:
        if name not in parameters:
            raise OptionError(f"there is no {name[:40]!r}; there are {', '.join(parameters) or 'no values'}")
    return {name: _checked(one, name, given.get(name)) for name, one in parameters.items()}


def _parsed(parameter: Parameter | None, name: str, text: str) -> Any:
    """A value of a query. An empty text is a number that is not given."""
    if parameter is None or parameter.kind == "string":
        return text
    if not text:
        return None
    if parameter.kind == "integer" and text.removeprefix("-").isdecimal() and len(text) < 21:
        return int(text)
    raise OptionError(f"{name} must be a number, not {text[:40]!r}")


_TYPES: Final[Mapping[str, type[Any]]] = {"string": str, "integer": int, "boolean": bool, "array": list}


def _checked(one: Parameter, name: str, value: Any) -> Any:
    if value is None or (value == "" and one.choices):
        if one.is_required:
            raise OptionError(f"{name} is missing")
        return one.default
    if not isinstance(value, _TYPES[one.kind]) or (one.kind == "integer" and isinstance(value, bool)):
        raise OptionError(f"{name} must be of type {one.kind}")
    if one.kind == "integer" and not one.least <= value <= one.most:
        raise OptionError(f"{name} must be between {one.least} and {one.most}, not {value}")
    if one.choices and value not in one.choices:
        raise OptionError(f"{name} must be one of {', '.join(one.choices)}, not {value[:40]!r}")
    if one.kind == "string" and name not in ("key", "value") and len(value) > _MOST_TEXT:
        raise OptionError(f"{name} is longer than {_MOST_TEXT} characters")
    return value


def openapi() -> dict[str, Any]:
    """The operations as an OpenAPI document."""
    paths: dict[str, Any] = {}
    for (method, path), operation in OPERATIONS.items():
        described: dict[str, Any] = {
            "summary": operation.summary,
            "operationId": path.removeprefix("/api/"),
            "responses": {
                "200": {"description": "The answer.", "content": {"application/json": {"schema": {"type": "object"}}}},
                "default": {
                    "description": "Why there is none.",
                    "content": {
                        "application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}
                    },
                },
            },
        }
        if operation.changes:
            described["requestBody"] = {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "properties": {name: schema(one) for name, one in operation.parameters.items()},
                            "required": [name for name, one in operation.parameters.items() if one.is_required],
                        }
                    }
                },
            }
        else:
            described["parameters"] = [
                {"name": name, "in": "query", "required": one.is_required, "schema": schema(one)}
                for name, one in operation.parameters.items()
            ]
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "seglog console", "version": seglog.__version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Of --token-file."}}
        },
        "security": [{"token": []}],
    }


def schema(one: Parameter) -> dict[str, Any]:
    """The JSON Schema of a value."""
    found: dict[str, Any] = {"type": one.kind}
    if one.kind == "integer":
        found |= {"minimum": one.least, "maximum": one.most}
    if one.kind == "array":
        found["items"] = {"type": "array", "items": {"type": "string"}}
    if one.choices:
        found["enum"] = list(one.choices)
    if one.default is not None:
        found["default"] = one.default
    return found | ({"description": one.note} if one.note else {})
