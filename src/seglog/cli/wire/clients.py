"""What the commands that talk to brokers share: their options, a cluster by its clients, errors in one line.

The client library is confluent-kafka (the extra ``client``), which is imported when a command asks for a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from seglog.client.bootstrap import connect, parse_bootstrap
from seglog.core.errors import RequestFailedError
from seglog.core.extras import require
from seglog.core.types import INTERNAL_TOPICS

if TYPE_CHECKING:
    from seglog.client.admin import Admin

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server", "-b", metavar="HOST:PORT", envvar="SEGLOG_BOOTSTRAP", help="Brokers to ask first."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
TopicsToo = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="The same, by Kafka's option.", show_default=False),
]
"""Beside topics that are a command's arguments."""

INTERNAL: Final = INTERNAL_TOPICS
_OFFSETS_TIME: Final[Mapping[str, str]] = {"earliest": "earliest", "latest": "latest", "max-timestamp": "max_timestamp"}


class Cluster:
    """Brokers, by name and settings. Nothing is asked before a client is needed; then that a broker is there."""

    def __init__(
        self, bootstrap: str, properties: Sequence[str] | None, command_config: str | None, timeout: float
    ) -> None:
        try:
            self._addresses = parse_bootstrap(bootstrap)
        except ValueError as error:
            raise typer.BadParameter(f"--bootstrap-server: {error}") from error
        self.timeout = timeout
        self._settings = {**_file(command_config), **_pairs(properties or (), "--property")}
        self._settings["bootstrap.servers"] = ",".join(map(str, self._addresses))
        self.kafka: Any = require("confluent_kafka", "client", purpose="talking to Kafka")
        self._admin: Any = None
        self._last_error = ""

    @property
    def api(self) -> Any:
        """confluent_kafka.admin."""
        return require("confluent_kafka.admin", "client", purpose="talking to Kafka")

    @property
    def admin(self) -> Any:
        if self._admin is None:
            self._admin = self._client(self.api.AdminClient, {})
        return self._admin

    def producer(self, settings: Mapping[str, object]) -> Any:
        return self._client(self.kafka.Producer, settings)

    def consumer(self, settings: Mapping[str, object]) -> Any:
        return self._client(self.kafka.Consumer, settings)

    def own_admin(self) -> Admin:
        """For what the library lacks."""
        protocol = str(self._settings.get("security.protocol", "plaintext"))
        if protocol.lower() != "plaintext":
            raise RequestFailedError(f"this goes over a plaintext listener only, not security.protocol={protocol}")
        from seglog.client.admin import Admin  # the protocol's schema takes a while to load

        return Admin(self._addresses, self.timeout)

    def _client(self, kind: Callable[[Mapping[str, object]], Any], settings: Mapping[str, object]) -> Any:
        connect(self._addresses, self.timeout).close()
        try:
            return kind({"log_level": 0, "error_cb": self._note, **settings, **self._settings})
        except self.kafka.KafkaException as error:
            raise RequestFailedError(f"settings: {error.args[0].str()}") from error

    def _note(self, error: Any) -> None:
        self._last_error = error.str()

    def check_quiet(self, what: str, seconds: float) -> None:
        """Raise the last error of the connections, if there was one and nothing has come for longer than an answer
        may take: the library itself would try again for ever."""
        if self._last_error and seconds > self.timeout:
            raise RequestFailedError(f"{what}: nothing came for {seconds:.0f} s: {self._last_error}")

    # Answers

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Errors of the library that are raised inside come out as ours, and name ``what``."""
        try:
            yield
        except self.kafka.KafkaException as error:
            raise RequestFailedError(f"{what}: {self.describe(error)}") from error

    def describe(self, error: Any) -> str:
        """An error of the library in words, with the last one of its connections where it only says: not in time."""
        if isinstance(error, self.kafka.KafkaException):
            error = error.args[0]
        if not isinstance(error, self.kafka.KafkaError):
            return str(error)
        text = str(error.str()).removeprefix("Broker: ").removeprefix("Local: ").removesuffix(".")
        if error.code() in (self.kafka.KafkaError._TIMED_OUT, self.kafka.KafkaError._TRANSPORT) and self._last_error:
            text = f"{text} ({self._last_error})"
        return text

    def result(self, future: Any, what: str) -> Any:
        """What a request came to."""
        with self.errors(what):
            try:
                return future.result(timeout=self.timeout + 5)
            except TimeoutError:
                raise RequestFailedError(f"{what}: no answer within {self.timeout:g} s") from None

    def topics(self) -> dict[str, list[int]]:
        """All topics, and the numbers of their partitions."""
        with self.errors("topics"):
            metadata = self.admin.list_topics(timeout=self.timeout)
        return {name: sorted(topic.partitions) for name, topic in sorted(metadata.topics.items())}

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """The partitions of topics that must be there."""
        known = self.topics()
        found = {}
        for topic in topics:
            if topic not in known:
                raise RequestFailedError(f"topic {topic}: there is no such topic")
            found[topic] = known[topic]
        return found

    def offsets(
        self, partitions: Iterable[tuple[str, int]], time: str | int, *, read_committed: bool = False
    ) -> dict[tuple[str, int], Any]:
        """Offset (-1 for none) and timestamp of each partition's earliest, latest or max-timestamp record, or of the
        first that is not before a time in milliseconds."""
        spec = self.api.OffsetSpec
        at = spec.for_timestamp(time) if isinstance(time, int) else getattr(spec, _OFFSETS_TIME[time])()
        wanted = {self.kafka.TopicPartition(topic, number): at for topic, number in partitions}
        if not wanted:
            return {}
        level = self.kafka.IsolationLevel.READ_COMMITTED if read_committed else None
        more = {"isolation_level": level} if level is not None else {}
        with self.errors("offsets"):
            futures = self.admin.list_offsets(wanted, request_timeout=self.timeout, **more)
        return {
            (at.topic, at.partition): self.result(future, f"topic {at.topic}, partition {at.partition}")
            for at, future in futures.items()
        }


class Brokers(NamedTuple):
    """The options by which a command finds brokers."""

    bootstrap: Bootstrap = "localhost:9092"
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-X", metavar="KEY=VALUE", help="A setting of librdkafka's.", show_default=False),
    ] = None
    command_config: Annotated[
        str | None,
        typer.Option("--command-config", "-F", metavar="FILE", help="A file of such settings.", show_default=False),
    ] = None
    timeout: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for an answer.")] = 30.0

    def cluster(self) -> Cluster:
        return Cluster(*self)


DEFAULT_BROKERS: Final = Brokers()


def _file(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    from seglog.core.fs import OsFs
    from seglog.storage.formats.properties import decode_properties

    return {key: one.value for key, one in decode_properties(OsFs().read(path), path).items()}


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{option}: {text!r} is not KEY=VALUE")
        found[key.strip()] = value
    return found


def key_values(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """``a=b,c=[d,e]``, as kafka-configs has it, and again; a single pair may have commas without brackets.

    >>> key_values(["retention.ms=1,cleanup.policy=[compact,delete]", "cleanup.policy=compact,delete"], "--config")
    {'retention.ms': '1', 'cleanup.policy': 'compact,delete'}
    """
    parts: list[str] = []
    for text in given or ():
        depth, start, pieces = 0, 0, []
        for position, character in enumerate(text):
            depth += {"[": 1, "]": -1}.get(character, 0)
            if character == "," and depth == 0:
                pieces.append(text[start:position])
                start = position + 1
        pieces.append(text[start:])
        for piece in pieces:
            if "=" in piece or piece is pieces[0]:
                parts.append(piece)
            else:
                parts[-1] += f",{piece}"
    return {
        key: value[1:-1] if value.startswith("[") and value.endswith("]") else value
        for key, value in _pairs(parts, option).items()
    }


def numbers(given: Sequence[str] | None, option: str) -> list[int]:
    """Partitions: ``0,2`` or ``0-3``, and again.

    >>> numbers(["0,2", "4-6"], "--partitions")
    [0, 2, 4, 5, 6]
    """
    found: list[int] = []
    for text in given or ():
        for part in text.split(","):
            first, dash, last = part.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                raise typer.BadParameter(f"{option}: {part!r} is no partition")
            found.extend(range(int(first), int(last or first) + 1))
    return found
