"""Kafka's configuration of a broker, as far as it means something here: one table of key, type, range, default, doc.

Keys, defaults and ranges are those of Kafka 4.3 (``AbstractKafkaConfig``) but for those whose doc says otherwise. The
keys of its log directory, which are a broker's too: `seglog.core.config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from seglog.core.addresses import Address, Addresses, parse_host_port
from seglog.core.cluster_config import ClusterConfig
from seglog.core.config import DIRECTORY_KEYS, SYNONYMS, LogDirConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import Boolean, Scaled, Setting, Text, check, int32, int64, setting, settings_of, unknown
from seglog.core.types import MAX_INT32

__all__ = ["BROKER_KEYS", "DYNAMIC_KEYS", "BrokerConfig", "default_text", "keys_of_environment"]

_PROTOCOLS: Final = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
IN_FLIGHT_BYTES: Final = 256 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ClusterConfig):
    """A broker's configuration. ``given`` has the keys that were given a value, with their texts; ``notes``, what is to
    be said of keys that are unknown or have no effect.

    >>> config = BrokerConfig.from_mapping({"listeners": "PLAINTEXT://:9092", "log.retention.hours": "1"})
    >>> config.listeners, config.directory.topics.retention_ms
    ((Address(name='PLAINTEXT', host='', port=9092),), 3600000)
    >>> BrokerConfig.from_mapping({"num.partitons": "3"}).notes
    ("unknown broker configuration 'num.partitons': did you mean num.partitions?",)
    """

    advertised_listeners: tuple[Address, ...] = setting(
        "advertised.listeners", Addresses(), "what clients connect to, if it is not what is listened on", default=()
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", Boolean(), "whether asking for a topic creates it", default=True
    )
    broker_id: int = setting("broker.id", int32(0, also=-1), "node.id by its old name", default=-1)
    broker_rack: str = setting("broker.rack", Text(), "where this broker stands, told to clients", default="")
    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms", int32(1000), "ms after which a broker that is silent counts as gone", default=9000
    )
    cluster_store: str = setting(
        "cluster.store",
        Text(),
        "sqlite:FILE or zookeeper://HOST:PORT,.../NAME, of a broker that is one of several; not a key of Kafka's",
        default="",
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms", int64(1, also=-1), "ms after which an idle connection is closed", default=600_000
    )
    controller_listener_names: str = setting(
        "controller.listener.names", Text(), "names in listeners that are left out: there is no controller", default=""
    )
    default_replication_factor: int = setting(
        "default.replication.factor", int32(1), "replicas of a topic that is created without a number", default=1
    )
    delete_topic_enable: bool = setting("delete.topic.enable", Boolean(), "whether topics may be deleted", default=True)
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", int32(1024), "bytes of records in an answer to Fetch", default=55 * 1024**2
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms", int32(0), "ms that a new group waits for more members", default=3000
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms", int32(1), "longest session.timeout.ms of a member", default=1_800_000
    )
    group_max_size: int = setting("group.max.size", int32(1), "members of a group", default=MAX_INT32)
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms", int32(1), "shortest session.timeout.ms of a member", default=6000
    )
    listener_security_protocol_map: str = setting(
        "listener.security.protocol.map", Text(), "listener:PLAINTEXT; there is no other yet", default=_PROTOCOLS
    )
    listeners: tuple[Address, ...] = setting(
        "listeners",
        Addresses(),
        "what is listened on; by default loopback, Kafka's default is all interfaces",
        default=(Address("PLAINTEXT", "127.0.0.1", 9092),),
    )
    log_dir: str = setting("log.dir", Text(), "the directories of the logs, if log.dirs is not given", default="")
    log_dirs: str = setting("log.dirs", Text(), "the directories of the logs; a node alone has one", default="")
    max_connection_creation_rate: int = setting(
        "max.connection.creation.rate",
        int32(1),
        "connections a second, the others wait; Kafka has no limit by default",
        default=500,
    )
    max_connections: int = setting(
        "max.connections", int32(0), "connections at a time; Kafka has no limit by default", default=10_000
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip", int32(0), "connections at a time from one address", default=MAX_INT32
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots", int32(0), "fetch sessions that are kept", default=1000
    )
    max_request_partition_size_limit: int = setting(
        "max.request.partition.size.limit",
        int32(1),
        "partitions in an answer to DescribeTopicPartitions",
        default=2000,
    )
    metrics_listener: str = setting(
        "metrics.listener",
        Text(),
        "HOST:PORT to tell metrics at, over HTTP; not a key of Kafka's",
        default="",
    )
    node_id: int = setting(
        "node.id", int32(0, also=-1), "this broker's number; -1: that of the directory, 1 for a new one", default=-1
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", int32(0), "bytes of the text that goes with a committed offset", default=4096
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms", int32(1), "ms that a commit may take", default=5000
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms", int64(1), "ms between two looks for offsets to forget", default=600_000
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", int32(1), "minutes that an empty group's offsets are kept", default=10_080
    )
    offsets_topic_compression_codec: int = setting(
        "offsets.topic.compression.codec",
        int32(0, 4),
        "codec of batches in __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd",
        default=0,
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions", int32(1), "partitions of __consumer_offsets", default=50
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        int32(1),
        "replicas of __consumer_offsets, or as many as there are brokers; Kafka: 3",
        default=1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", int32(1), "segment.bytes of __consumer_offsets", default=100 * 1024**2
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        int64(1, also=-1),
        "bytes of large requests that are being received; -1: 256 MiB, in Kafka no limit",
        default=-1,
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes", int32(1), "bytes of the largest request", default=100 * 1024**2
    )
    directory: LogDirConfig = field(default_factory=LogDirConfig)
    given: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self, _OWN.values())
        self.check_cluster()
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfigError("group.min.session.timeout.ms is greater than group.max.session.timeout.ms")
        if 0 < self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise InvalidConfigError("queued.max.request.bytes is smaller than socket.request.max.bytes")
        threads = self.directory.log_cleaner_threads
        if not threads or self.directory.log_cleaner_dedupe_buffer_size // threads <= 1 << 20:
            raise InvalidConfigError("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
        if self.metrics_listener:
            try:
                parse_host_port(self.metrics_listener)
            except ValueError as error:
                raise InvalidConfigError(
                    f"metrics.listener={self.metrics_listener!r} is not allowed: {error}"
                ) from error
        protocols = dict(pair.strip().upper().split(":", 1) for pair in self._protocol_pairs())
        for listener in self.broker_listeners:
            protocol = protocols.get(listener.name, listener.name)
            if f"{protocol}:{protocol}" not in _PROTOCOLS.split(","):
                raise InvalidConfigError(
                    f"listeners={listener} is not allowed: {listener.name} has no protocol of Kafka's in "
                    "listener.security.protocol.map"
                )
            if protocol != "PLAINTEXT":
                raise InvalidConfigError(f"listeners={listener} is not allowed: {protocol} is not served yet")
        if not self.broker_listeners:
            raise InvalidConfigError("listeners: there is none that clients could use")
        known = {listener.name for listener in self.listeners}
        for listener in self.advertised_listeners:
            if listener.name not in known:
                raise InvalidConfigError(f"advertised.listeners={listener} is not allowed: listeners has no such name")
        name = self.inter_broker_listener_name.upper()
        if name and name not in {listener.name for listener in self.broker_listeners}:
            raise InvalidConfigError(f"inter.broker.listener.name={name} is not allowed: listeners has no such name")

    def _protocol_pairs(self) -> list[str]:
        pairs = [pair for pair in self.listener_security_protocol_map.split(",") if pair.strip()]
        if not all(":" in pair for pair in pairs):
            raise InvalidConfigError(
                f"listener.security.protocol.map={self.listener_security_protocol_map!r} is not allowed: name:protocol"
            )
        return pairs

    @property
    def broker_listeners(self) -> list[Address]:
        """The listeners without those of a controller."""
        left_out = {name.strip().upper() for name in self.controller_listener_names.split(",")}
        return [listener for listener in self.listeners if listener.name not in left_out]

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The log directories; none if neither key is given."""
        given = self.log_dirs.strip(", ") or self.log_dir
        return tuple(path.strip() for path in given.split(",") if path.strip())

    @property
    def data_dir(self) -> str:
        """The log directory of a node that is alone. `InvalidConfigError` if there are several."""
        if len(self.data_dirs) > 1:
            raise InvalidConfigError(
                f"log.dirs={','.join(self.data_dirs)!r} is not allowed: a node that is alone has one log directory. "
                "Give it one, or let it join a cluster (cluster.store)"
            )
        return self.data_dirs[0] if self.data_dirs else ""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> BrokerConfig:
        """The configuration with these keys. Raises `InvalidConfigError` for a value that is not allowed, and for keys
        that would have to protect something and cannot; an unknown key is noted."""
        given: dict[str, str] = {}
        own: dict[str, Any] = {}
        directory: dict[str, object] = {}
        notes = []
        passed_over = []
        for name, value in mapping.items():
            row = BROKER_KEYS.get(name)
            if row is None:
                if name in _REFUSED and str(value).strip():
                    raise InvalidConfigError(f"{name}={value!r} is not allowed: {_REFUSED[name]}")
                if _PASSED_OVER.match(name):
                    passed_over.append(name)
                elif name not in _REFUSED:
                    notes.append(str(unknown(name, BROKER_KEYS, "broker configuration")))
                continue
            if name in _OWN:
                own[row.attribute] = row.parse(value)
            else:
                directory[name] = value
            given[name] = row.rule.format(row.parse(value))
        if passed_over:
            notes.append(f"keys of Kafka's that have no effect here: {', '.join(sorted(passed_over))}")
        return cls(directory=LogDirConfig.from_mapping(directory), given=given, notes=tuple(notes), **own)


_OWN: Final = settings_of(BrokerConfig)
BROKER_KEYS: Final[dict[str, Setting]] = dict(sorted({**DIRECTORY_KEYS, **_OWN}.items()))
"""Every key that `BrokerConfig.from_mapping` knows, by name."""

_NULL_DEFAULTS: Final = frozenset(row.name for rows in SYNONYMS.values() for row in rows[:-1])


def default_text(row: Setting) -> str | None:
    """A key's default as a text; None where another name of the same thing has it (``log.retention.ms``)."""
    if row.name in _NULL_DEFAULTS:
        return None
    return str(row.default) if isinstance(row.rule, Scaled) else row.rule.format(row.default)


DYNAMIC_KEYS: Final = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.threads",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "message.max.bytes",
        "min.insync.replicas",
        "num.recovery.threads.per.data.dir",
        "producer.id.expiration.ms",
        "unclean.leader.election.enable",
    }
)
"""What may be changed while the broker runs: of Kafka's ``ALL_DYNAMIC_CONFIGS`` those that are served here."""

_NO_SECURITY: Final = "it would not protect anything: seglog has no TLS, SASL or ACLs yet"
_REFUSED: Final = dict.fromkeys(
    ("authorizer.class.name", "ssl.client.auth", "sasl.enabled.mechanisms", "super.users"), _NO_SECURITY
)
_PASSED_OVER: Final = re.compile(
    r"(add\.partitions\.to\.txn|alter\.(config|log)|background\.threads|broker\.heartbeat|"
    r"client\.quota|config\.providers|connection\.failed|connections\.max\.reauth|controlled\.shutdown|"
    r"controller\.|cordoned\.|create\.topic\.policy|delegation\.token|early\.start|"
    r"(delete\.records|(share\.)?fetch|producer)\.purgatory|follower\.|leader\.|group\.(consumer|coordinator|share|streams)\.|"
    r"initial\.broker|inter\.broker|kafka\.|listener\.name\.|log\.dir\.failure|log\.local\.|log4j|"
    r"max\.connections\.per\.ip\.overrides|metadata\.|metric|metrics\.|"
    r"num\.(io|network|replica)\.|offsets\.load|password\.encoder|principal\.builder|"
    r"process\.roles|queued\.max\.requests|quorum|quota\.|remote\.|replica\.|replication\.|request\.timeout|"
    r"reserved\.|sasl\.|security\.|server\.max|share\.coordinator|socket\.(connection|listen|receive|send)|ssl\.|"
    r"telemetry|transaction(al)?\.|unclean\.leader|unstable\.|zookeeper\.|internal\.)"
)
"""Keys that Kafka has and that change nothing here: a file copied from a broker passes."""

_ENVIRONMENT: Final = "KAFKA_"
_NOT_KEYS: Final = re.compile(r"KAFKA_(.*_OPTS|LOG4J_.*|JMX_.*|HOME|VERSION|GC_.*|MODE|DEBUG|CLUSTER_ID|USER|.*_CMD)")


def keys_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Keys from variables as the image apache/kafka has them: ``KAFKA_LOG_DIRS`` is ``log.dirs``.

    >>> keys_of_environment({"KAFKA_NUM_PARTITIONS": "3", "KAFKA_HEAP_OPTS": "-Xmx1g", "HOME": "/"})
    {'num.partitions': '3'}
    """
    return {
        name[len(_ENVIRONMENT) :]
        .lower()
        .replace("___", "-")
        .replace("__", "\0")
        .replace("_", ".")
        .replace("\0", "_"): value
        for name, value in environment.items()
        if name.startswith(_ENVIRONMENT) and not _NOT_KEYS.fullmatch(name)
    }
