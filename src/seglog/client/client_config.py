"""The configuration of our client, under the names of Kafka's consumer and producer.

Names, defaults and ranges are Kafka 4.4's (``CommonClientConfigs.java``, ``ConsumerConfig.java``,
``ProducerConfig.java``). The documentation is generated from the fields of `ClientConfig` and `SecurityConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

from seglog.client.bootstrap import HostPort, parse_bootstrap
from seglog.client.security.references import PROVIDERS, has_reference
from seglog.client.security.security_config import PLAINTEXT, SECURITY_SETTINGS, SecurityConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import (
    Boolean,
    Enumeration,
    Integer,
    Setting,
    Text,
    int32,
    int64,
    setting,
    settings_of,
    unknown,
)

Use = Literal["read", "write"]
"""The role of a client. A name that concerns only the other role has no effect."""
READ: Final = "read"
WRITE: Final = "write"


_LONGEST: Final = 1e9
"""Seconds that a socket can wait; Kafka allows many more."""


@dataclass(frozen=True, slots=True)
class _Bootstrap:
    type: ClassVar[str] = "list"
    allowed: ClassVar[str] = "`HOST:PORT`, or several with commas between"

    def parse(self, value: object) -> tuple[HostPort, ...]:
        return tuple(parse_bootstrap(str(value)))

    def format(self, value: Any) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True, slots=True)
class _Milliseconds:
    """A whole number of milliseconds; the value is in seconds."""

    number: Integer

    @property
    def type(self) -> str:
        return self.number.type

    @property
    def allowed(self) -> str:
        return self.number.allowed

    def parse(self, value: object) -> float:
        return min(self.number.parse(value) / 1000, _LONGEST)

    def format(self, value: Any) -> str:
        return str(round(value * 1000))


@dataclass(frozen=True, slots=True)
class _ClientId:
    type: ClassVar[str] = "string"
    allowed: ClassVar[str] = "at most 32767 bytes"

    def parse(self, value: object) -> str:
        text = Text().parse(value)
        if len(text.encode()) > 32767:
            raise ValueError("too long for a request's header")
        return text or "seglog"

    def format(self, value: Any) -> str:
        return str(value)


_PARTITIONERS: Final = {
    "": "default",
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "default",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round-robin",
}
_ALL: Final = -1
_MOST_IN_FLIGHT: Final = 5
"""Requests of which a broker remembers the sequence numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client reaches brokers, reads and writes. Times are in seconds, sizes in bytes.

    Make it with `from_mapping`, or with attributes as keyword arguments. ``timeout`` is ``request.timeout.ms``: how
    long a broker may be silent. Values of secrets are in no `repr` and in no error.

    >>> config = ClientConfig.from_mapping({"bootstrap.servers": "a:9092,b", "fetch.max.wait.ms": "250"}, use="read")
    >>> [str(one) for one in config.bootstrap], config.fetch_max_wait
    (['a:9092', 'b:9092'], 0.25)
    """

    bootstrap: tuple[HostPort, ...] = setting(
        _Bootstrap(), "Brokers to connect to first; they name the others.", default=(), name="bootstrap.servers"
    )
    client_id: str = setting(_ClientId(), "Names the client in brokers' logs and quotas.", default="seglog")
    client_rack: str = setting(
        Text(), "The client's rack. It reads from a replica in that rack if the broker names one.", default="", use=READ
    )
    timeout: float = setting(
        _Milliseconds(int32(1)), "How long (ms) a broker may stay silent.", default=30.0, name="request.timeout.ms"
    )
    connect_timeout: float = setting(
        _Milliseconds(int64(1)),
        "How long (ms) each step of connecting may take, TLS included.",
        default=10.0,
        name="socket.connection.setup.timeout.ms",
    )
    retry_backoff: float = setting(
        _Milliseconds(int64(0)),
        "The wait (ms) before the first retry; it doubles with each further retry …",
        default=0.1,
        name="retry.backoff.ms",
    )
    retry_backoff_max: float = setting(
        _Milliseconds(int64(0)), "… up to this.", default=1.0, name="retry.backoff.max.ms"
    )
    receive_buffer_bytes: int = setting(
        int32(-1), "Bytes of a socket's receive buffer; -1: the system's default.", default=1 << 20
    )
    send_buffer_bytes: int = setting(
        int32(-1), "Bytes of a socket's send buffer; -1: the system's default.", default=-1
    )
    security: SecurityConfig = PLAINTEXT
    fetch_max_bytes: int = setting(int32(0), "The most bytes of records in one response.", default=16 << 20, use=READ)
    fetch_min_bytes: int = setting(
        int32(0), "A broker waits for this many bytes of records before it answers …", default=1, use=READ
    )
    fetch_max_wait: float = setting(
        _Milliseconds(int32(0)), "… but no longer than this (ms).", default=0.5, name="fetch.max.wait.ms", use=READ
    )
    max_partition_fetch_bytes: int = setting(
        int32(0),
        "The most bytes of one partition in one response; a larger batch is returned whole.",
        default=4 << 20,
        use=READ,
    )
    isolation_level: str = setting(
        Enumeration({name: name for name in ("read_uncommitted", "read_committed")}, ignores_case=True),
        "`read_committed` leaves out records of aborted and open transactions.",
        default="read_uncommitted",
        use=READ,
    )
    check_crcs: bool = setting(Boolean(), "Whether the CRC of each batch is checked.", default=True, use=READ)
    acks: int = setting(
        Enumeration({"all": _ALL, "-1": _ALL, "0": 0, "1": 1}, ignores_case=True),
        "How many replicas must have a batch before the broker answers.",
        default=_ALL,
        use=WRITE,
    )
    compression_type: str = setting(
        Enumeration({name: name for name in ("none", "gzip", "snappy", "lz4", "zstd")}),
        "The codec of batches.",
        default="none",
        use=WRITE,
    )
    compression_gzip_level: int = setting(
        int32(1, 9, also=-1), "The level of gzip; -1: the default of zlib.", default=-1, use=WRITE
    )
    compression_lz4_level: int = setting(int32(1, 17), "The level of lz4.", default=9, use=WRITE)
    compression_zstd_level: int = setting(int32(-131072, 22), "The level of zstd.", default=3, use=WRITE)
    batch_size: int = setting(int32(0), "The size (bytes) at which a batch is full.", default=16384, use=WRITE)
    max_request_size: int = setting(
        int32(0), "The most bytes of a request, and of a batch.", default=1 << 20, use=WRITE
    )
    max_in_flight_requests_per_connection: int = setting(
        int32(1), "How many requests to one broker may be unanswered.", default=5, use=WRITE
    )
    delivery_timeout: float = setting(
        _Milliseconds(int32(0)),
        "How long (ms) a batch may take, retries included.",
        default=120.0,
        name="delivery.timeout.ms",
        use=WRITE,
    )
    transaction_timeout: float = setting(
        _Milliseconds(int32(1)),
        "How long (ms) until the brokers abort a transaction.",
        default=60.0,
        name="transaction.timeout.ms",
        use=WRITE,
    )
    enable_idempotence: bool = setting(
        Boolean(),
        "Whether retries are kept from writing a batch twice. As in Kafka, the default is false with `acks` other than "
        "all, or more than 5 requests in flight.",
        default=True,
        use=WRITE,
    )
    partitioner: str = setting(
        Enumeration(_PARTITIONERS),
        "How a record without a partition gets one. Empty: by its key; without a key, one partition per batch.",
        default="default",
        name="partitioner.class",
        use=WRITE,
    )
    partitioner_ignore_keys: bool = setting(
        Boolean(), "Whether the default partitioner treats records as if they had no key.", default=False, use=WRITE
    )
    without_effect: tuple[str, ...] = ()
    """The names that were given and change nothing, sorted."""

    @classmethod
    def from_mapping(cls, properties: Mapping[str, str], *, use: Use) -> ClientConfig:
        """The configuration of a client with these properties, in any case; ``bootstrap.servers`` must be one of them.

        Raises `InvalidConfigError` for an unknown name, a value out of its range, what is not supported, and options
        that contradict each other. It opens no file: references to secrets are resolved for each connection.
        """
        given = {name.lower(): text for name, text in properties.items()}
        values: dict[str, Any] = {}
        security: dict[str, Any] = {}
        without_effect = []
        for name, text in given.items():
            row = CLIENT_SETTINGS.get(name)
            if row is not None and row.use in ("", use):
                _check_no_reference(name, text)
                values[row.attribute] = row.parse(text)
            elif name in SECURITY_SETTINGS:
                security[SECURITY_SETTINGS[name].attribute] = text
            elif row is not None or name in WITHOUT_EFFECT:
                without_effect.append(name)
            elif name == _PROVIDERS or name.startswith(f"{_PROVIDERS}."):
                _check_providers(name, text)
            elif name in _CLASSES:
                _check_class(name, text)
            else:
                raise _refused(name)
        if not values.get("bootstrap"):
            raise InvalidConfigError("bootstrap.servers is missing: set it to HOST:PORT of one or more brokers")
        made = cls(**values, security=SecurityConfig(**security), without_effect=tuple(sorted(without_effect)))
        return _with_idempotence(made, given) if use == WRITE else made


CLIENT_SETTINGS: Final[dict[str, Setting]] = settings_of(ClientConfig)

WITHOUT_EFFECT: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "buffer.memory",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.throw.on.fetch.stable.offset.unsupported",
        "linger.ms",
        "max.block.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "socket.connection.setup.timeout.max.ms",
        "ssl.keymanager.algorithm",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)
"""Names of Kafka that concern consumer groups, Java, or the buffers and threads of its client. They are accepted, so
that properties of another client can be used unchanged."""

_PROVIDERS: Final = "config.providers"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."
_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "sasl.login.callback.handler.class": frozenset(
        {f"{_OAUTH}OAuthBearerLoginCallbackHandler", f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler"}
    ),
    "sasl.oauthbearer.jwt.retriever.class": frozenset(
        f"{_OAUTH}{name}" for name in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
    ),
    "sasl.oauthbearer.jwt.validator.class": frozenset(
        f"{_OAUTH}{name}" for name in ("DefaultJwtValidator", "ClientJwtValidator")
    ),
}
"""Names whose value is a Java class, with those classes that do what this client does anyway."""

_KERBEROS: Final = "Kerberos is not supported: set sasl.mechanism to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
_JAVA_CODE: Final = "it names code in Java, which this client does not run"
_ASSERTION: Final = (
    "tokens for assertions are not supported: set sasl.oauthbearer.client.credentials.client.id and .client.secret, or "
    "let another program write a token to the file of sasl.oauthbearer.token.endpoint.url=file:///PATH"
)
_BYTES: Final = "keys and values are bytes: cast the column"
REFUSED: Final[Mapping[str, str]] = {
    "auto.offset.reset": "set the option startingOffsets",
    "enable.auto.commit": "offsets are kept by Spark, not by a consumer group",
    "interceptor.classes": _JAVA_CODE,
    "key.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "sasl.client.callback.handler.class": _JAVA_CODE,
    "sasl.kerberos": _KERBEROS,
    "sasl.login.class": _JAVA_CODE,
    "sasl.oauthbearer.assertion": _ASSERTION,
    "security.providers": _JAVA_CODE,
    "ssl.engine.factory.class": f"{_JAVA_CODE}; set ssl.truststore.* and ssl.keystore.*",
    "ssl.provider": f"{_JAVA_CODE}; TLS is OpenSSL's",
    "transaction.two.phase.commit.enable": "two-phase commit is not supported",
    "transactional.id": "each job chooses its own transactional ids",
    "value.deserializer": _BYTES,
    "value.serializer": _BYTES,
}
"""Names of Kafka that are refused, or the beginnings of such names, with the remedy."""

_OF_LIBRDKAFKA: Final[Mapping[str, str]] = {
    "enable.ssl.certificate.verification": "set ssl.truststore.location to the CA that signs the brokers' certificates",
    "sasl.mechanisms": "set sasl.mechanism",
    "sasl.oauthbearer.client.id": "set sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "set sasl.oauthbearer.client.credentials.client.secret",
    "sasl.password": "set sasl.jaas.config",
    "sasl.username": "set sasl.jaas.config",
    "ssl.ca.location": "set ssl.truststore.location",
    "ssl.ca.pem": "set ssl.truststore.certificates",
    "ssl.certificate.location": "set ssl.keystore.location to a file with certificate and key",
    "ssl.certificate.pem": "set ssl.keystore.certificate.chain",
    "ssl.key.location": "set ssl.keystore.location to a file with certificate and key",
    "ssl.key.pem": "set ssl.keystore.key",
}
"""librdkafka's names of what Kafka calls otherwise."""


def is_known(name: str) -> bool:
    """Whether a client of Kafka, or librdkafka, has a property of this name, which may be one that is refused."""
    return (
        name in CLIENT_SETTINGS
        or name in SECURITY_SETTINGS
        or name in WITHOUT_EFFECT
        or name in _CLASSES
        or name == _PROVIDERS
        or name.startswith(f"{_PROVIDERS}.")
        or _reason_to_refuse(name) is not None
    )


def names_of_properties() -> list[str]:
    """The names that have an effect."""
    return [*CLIENT_SETTINGS, *SECURITY_SETTINGS]


def _reason_to_refuse(name: str) -> str | None:
    for refused, reason in (*REFUSED.items(), *_OF_LIBRDKAFKA.items()):
        if name == refused or name.startswith(f"{refused}."):
            return reason
    return None


def _refused(name: str) -> InvalidConfigError:
    if (reason := _reason_to_refuse(name)) is not None:
        return InvalidConfigError(f"{name} is not supported: {reason}")
    return unknown(name, names_of_properties(), "property of a Kafka client")


def _check_no_reference(name: str, text: str) -> None:
    if has_reference(text):
        raise InvalidConfigError(f"{name}={text!r}: only ssl.* and sasl.* may have references to secrets")


def _check_providers(name: str, text: str) -> None:
    """`config.providers` and its classes may say what is there anyway."""
    if name == _PROVIDERS:
        other = {one.strip() for one in text.split(",")} - {"", *PROVIDERS}
        if other:
            raise InvalidConfigError(f"{name}={text!r} is not allowed: the providers are {', '.join(PROVIDERS)}")
        return
    provider, _, rest = name.removeprefix(f"{_PROVIDERS}.").partition(".")
    if rest != "class":
        raise InvalidConfigError(f"{name} is not supported: references may name every file that the user may read")
    if text.strip() != PROVIDERS.get(provider):
        known = ", ".join(f"{one}: {java}" for one, java in PROVIDERS.items())
        raise InvalidConfigError(f"{name}={text!r} is not supported: the providers are {known}")


def _check_class(name: str, text: str) -> None:
    if text.strip() not in _CLASSES[name]:
        allowed = ", ".join(sorted(_CLASSES[name]))
        raise InvalidConfigError(f"{name}={text!r} is not supported: {_JAVA_CODE}, except {allowed}")


def _with_idempotence(config: ClientConfig, given: Mapping[str, str]) -> ClientConfig:
    """The rules of ``ProducerConfig.java`` about options that exclude each other."""
    timeouts = config.timeout
    if config.delivery_timeout < timeouts:
        if "delivery.timeout.ms" in given:
            raise InvalidConfigError(
                f"delivery.timeout.ms={given['delivery.timeout.ms']} must not be below request.timeout.ms="
                f"{round(timeouts * 1000)}"
            )
        config = replace(config, delivery_timeout=timeouts)
    if not config.enable_idempotence:
        return config
    conflict = None
    if config.acks != _ALL:
        conflict = f"acks={given['acks']}"
    elif config.max_in_flight_requests_per_connection > _MOST_IN_FLIGHT:
        conflict = f"max.in.flight.requests.per.connection={config.max_in_flight_requests_per_connection}"
    if conflict is None:
        return config
    if "enable.idempotence" in given:
        raise InvalidConfigError(
            f"enable.idempotence=true excludes {conflict}: it needs acks=all and at most {_MOST_IN_FLIGHT} requests "
            "in flight"
        )
    return replace(config, enable_idempotence=False)
