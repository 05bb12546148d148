"""Clients of a Kafka cluster for the commands: their options, the requests, and errors in one line.

The client library is confluent-kafka (the extra ``client``). It is imported when a command needs a client.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import OptionError, key_values, read_properties
from seglog.cli.output import FAILED, FINE, Out, fail
from seglog.client.bootstrap import HostPort, connect, parse_bootstrap
from seglog.cluster.reassignment_plan import Place
from seglog.core.errors import InvalidConfigError, RequestFailedError
from seglog.core.extras import require

if TYPE_CHECKING:
    from seglog.client.admin import Admin
    from seglog.client.client_config import ClientConfig
    from seglog.client.cluster_connections import ClusterConnections
    from seglog.client.consumer_groups import ConsumerGroup
    from seglog.client.security.security_config import SecurityConfig

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server", "-b", metavar="HOST:PORT", envvar="SEGLOG_BOOTSTRAP", help="Brokers to contact first."
    ),
]
Timeout = Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for a response.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the request and change nothing.")]
_OFFSETS_TIME: Final[Mapping[str, str]] = {"earliest": "earliest", "latest": "latest", "max-timestamp": "max_timestamp"}


def bootstrap_addresses(text: str) -> list[HostPort]:
    """The value of ``--bootstrap-server``. Raises `OptionError`."""
    try:
        return parse_bootstrap(text)
    except ValueError as error:
        raise OptionError(f"--bootstrap-server: {error}") from error


class Cluster:
    """A cluster by its bootstrap addresses and client settings. It connects when a client is needed."""

    def __init__(
        self, bootstrap: str, properties: Sequence[str] | None, command_config: str | None, timeout: float
    ) -> None:
        self._addresses = bootstrap_addresses(bootstrap)
        self.timeout = timeout
        self._settings = client_settings(properties, command_config)
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
        """A client for requests that the library lacks. `InvalidConfigError` if it lacks something in the settings."""
        from seglog.client.admin import Admin  # slow to import: it loads the protocol's schema

        return Admin(self._addresses, self.timeout, self._security())

    def own_connections(self) -> ClusterConnections:
        """The same, for requests of any kind."""
        from seglog.client.client_config import ClientConfig
        from seglog.client.cluster_connections import ClusterConnections

        return ClusterConnections(
            ClientConfig(
                bootstrap=tuple(self._addresses),
                timeout=self.timeout,
                connect_timeout=self.timeout,
                security=self._security(),
            )
        )

    def _security(self) -> SecurityConfig:
        from seglog.cli.wire.client_settings import security_of

        return security_of(self._settings)

    @property
    def has_own_client(self) -> bool:
        """Whether `own_admin` can use the settings: only the library speaks Kerberos."""
        try:
            self._security()
        except (InvalidConfigError, OptionError):
            return False
        return True

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """A group of the consumer protocol, with its epochs. None for other groups, for brokers without them, and
        without `has_own_client`."""
        if not self.has_own_client:
            return None
        from seglog.client.consumer_groups import ConsumerGroupAdmin

        with ConsumerGroupAdmin(self._addresses, self.timeout, self._security()) as admin:
            return admin.describe(name)

    def _client(self, kind: Callable[[Mapping[str, object]], Any], settings: Mapping[str, object]) -> Any:
        from seglog.cli.wire.client_settings import librdkafka_settings

        own = librdkafka_settings(self._settings)
        connect(self._addresses, self.timeout)[0].close()
        try:
            return kind({"log_level": 0, "error_cb": self._note, **settings, **own})
        except self.kafka.KafkaException as error:
            raise RequestFailedError(f"settings: {error.args[0].str()}") from error

    def _note(self, error: Any) -> None:
        self._last_error = error.str()

    def check_quiet(self, what: str, seconds: float) -> None:
        """Raise the last connection error if nothing was received for longer than the timeout. The library itself
        would retry for ever."""
        if self._last_error and seconds > self.timeout:
            raise RequestFailedError(f"{what}: nothing was received for {seconds:.0f} s: {self._last_error}")

    # Requests

    def ask(self, request: str, what: str, *arguments: Any, **settings: Any) -> Any:
        """Call a method of the admin client; returns its futures. ``what`` begins the text of an error."""
        with self.errors(what):
            return getattr(self.admin, request)(*arguments, request_timeout=self.timeout, **settings)

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn errors of the library into `RequestFailedError`; ``what`` begins their text."""
        try:
            yield
        except self.kafka.KafkaException as error:
            raise RequestFailedError(f"{what}: {self.describe(error)}") from error

    def describe(self, error: Any) -> str:
        """The text of a library error; a timeout is followed by the last connection error."""
        if isinstance(error, self.kafka.KafkaException):
            error = error.args[0]
        if not isinstance(error, self.kafka.KafkaError):
            return str(error)
        text = str(error.str()).removeprefix("Broker: ").removeprefix("Local: ").removesuffix(".")
        if error.code() in (self.kafka.KafkaError._TIMED_OUT, self.kafka.KafkaError._TRANSPORT) and self._last_error:
            text = f"{text} ({self._last_error})"
        return text

    def result(self, future: Any, what: str) -> Any:
        """Wait for the response to a request."""
        with self.errors(what):
            try:
                return future.result(timeout=self.timeout + 5)
            except TimeoutError:
                raise RequestFailedError(f"{what}: no response within {self.timeout:g} s") from None

    def only_result(self, futures: Mapping[Any, Any], what: str) -> Any:
        (future,) = futures.values()
        return self.result(future, what)

    def report(
        self, futures: Mapping[str, Any], noun: str, done: str, *, json: bool, ignored: int | None = None
    ) -> int:
        """Print a line for each topic or group (``noun``), whether others failed or not; returns the exit code.

        ``ignored`` is an error code that counts as neither done nor failed.
        """
        code = FINE
        with Out() as out:
            for name, future in futures.items():
                reason = None
                is_done = True
                try:
                    self.result(future, f"{noun} {name}")
                except RequestFailedError as error:
                    is_done = False
                    if ignored is None or code_of(error) != ignored:
                        reason, code = str(error), FAILED
                        fail(reason)
                if json:
                    out.json({noun: name, "done": is_done, "error": reason})
                elif is_done:
                    out.line(f"{done} {name}")
        return code

    # Topics and offsets

    def topics(self) -> dict[str, list[int]]:
        """All topics and the numbers of their partitions."""
        with self.errors("topics"):
            metadata = self.admin.list_topics(timeout=self.timeout)
        return {name: sorted(topic.partitions) for name, topic in sorted(metadata.topics.items())}

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """The partitions of topics, which must exist."""
        known = self.topics()
        found = {}
        for topic in topics:
            if topic not in known:
                raise RequestFailedError(f"topic {topic} does not exist")
            found[topic] = known[topic]
        return found

    def offsets(
        self, partitions: Iterable[Place], time: str | int, *, read_committed: bool = False
    ) -> dict[Place, Any]:
        """Offset (-1 for none) and timestamp of each partition's earliest, latest or max-timestamp record, or of the
        first record at or after a time in milliseconds."""
        spec = self.api.OffsetSpec
        at = spec.for_timestamp(time) if isinstance(time, int) else getattr(spec, _OFFSETS_TIME[time])()
        asked = {self.kafka.TopicPartition(topic, number): at for topic, number in partitions}
        if not asked:
            return {}
        more = {"isolation_level": self.kafka.IsolationLevel.READ_COMMITTED} if read_committed else {}
        return {
            (at.topic, at.partition): self.result(future, f"topic {at.topic}, partition {at.partition}")
            for at, future in self.ask("list_offsets", "offsets", asked, **more).items()
        }

    def first(self, partitions: Iterable[Place]) -> dict[Place, int]:
        return {place: found.offset for place, found in self.offsets(partitions, "earliest").items()}

    def ends(self, partitions: Iterable[Place]) -> dict[Place, int]:
        return {place: found.offset for place, found in self.offsets(partitions, "latest").items()}

    def offsets_from(self, partitions: Sequence[Place], time: int) -> dict[Place, int]:
        """The first offset at or after a time in milliseconds; the end of a partition that has no such record."""
        found, ends = self.offsets(partitions, time), self.ends(partitions)
        return {place: found[place].offset if found[place].offset >= 0 else ends[place] for place in partitions}


def show_dry_run(noun: str, names: Iterable[str], known: Container[str], *, json: bool, ignored: bool = False) -> int:
    """Print what would be deleted; returns the exit code. ``ignored``: a name that does not exist is not an error."""
    code = FINE
    with Out() as out:
        for name in names:
            reason = None
            if name not in known and not ignored:
                reason = f"{noun} {name} does not exist"
                code = fail(reason)
            if json:
                out.json({noun: name, "done": False, "error": reason})
            elif name in known:
                out.line(f"would delete {name}")
    return code


def code_of(error: RequestFailedError) -> int | None:
    """Kafka's code of an error that `Cluster.errors` has raised."""
    cause = error.__cause__
    code = getattr(cause.args[0], "code", None) if cause is not None and cause.args else None
    return code() if code is not None else None


Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", "-X", metavar="KEY=VALUE", help="A setting of librdkafka or Kafka's client.", show_default=False
    ),
]
CommandConfig = Annotated[
    str | None,
    typer.Option("--command-config", "-F", metavar="FILE", help="A file of such settings.", show_default=False),
]


def client_settings(properties: Sequence[str] | None, command_config: str | None) -> dict[str, str]:
    return {
        **({} if command_config is None else read_properties(command_config)),
        **key_values("--property", properties),
    }


class Brokers(NamedTuple):
    """The options by which a command finds brokers."""

    bootstrap: Bootstrap = "localhost:9092"
    properties: Properties = None
    command_config: CommandConfig = None
    timeout: Timeout = 30.0

    def cluster(self) -> Cluster:
        return Cluster(*self)

    def own_config(self) -> ClientConfig:
        """For requests that librdkafka lacks: the settings are Kafka's, or librdkafka's as far as they mean the same.
        `InvalidConfigError`, `OptionError`."""
        from seglog.client.client_config import READ, ClientConfig

        given = {} if self.command_config is None else read_properties(self.command_config)
        given |= key_values("--property", self.properties)
        given["bootstrap.servers"] = ",".join(map(str, bootstrap_addresses(self.bootstrap)))
        config = ClientConfig.from_mapping(as_kafkas(given), use=READ)
        return replace(config, timeout=self.timeout, connect_timeout=self.timeout)


_MODULES: Final = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM_MODULE: Final = "scram.ScramLoginModule"


def as_kafkas(settings: Mapping[str, str]) -> dict[str, str]:
    r"""Settings of TLS and SASL with Kafka's names in place of librdkafka's.

    >>> as_kafkas({"sasl.mechanisms": "PLAIN", "sasl.username": "ann", "sasl.password": 'x"y'})["sasl.jaas.config"]
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="x\"y";'
    """
    found = dict(settings)
    if (mechanism := found.pop("sasl.mechanisms", None)) is not None:
        found["sasl.mechanism"] = mechanism
    user, password = found.pop("sasl.username", None), found.pop("sasl.password", None)
    if user is not None and password is not None:
        module = _MODULES.get(found.get("sasl.mechanism", ""), _SCRAM_MODULE)
        words = " ".join(f'{name}="{_escaped(text)}"' for name, text in (("username", user), ("password", password)))
        found["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} required {words};"
    if (authority := found.pop("ssl.ca.location", None)) is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if found.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


DEFAULT_BROKERS: Final = Brokers()


class TopicNames(NamedTuple):
    """Topics as arguments, or by Kafka's option."""

    names: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics.", show_default=False)] = None
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="The same, by Kafka's option.", show_default=False),
    ] = None

    def all(self) -> list[str]:
        return [*(self.names or ()), *(self.topics or ())]


NO_TOPICS: Final = TopicNames()
