"""The tables of keys against Kafka 4.4's own, and what is refused with which words."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.config import DIRECTORY_KEYS, REFUSED_TOPIC_KEYS, SYNONYMS, TOPIC_KEYS, LogConfig, LogDirConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import Boolean, Enumeration, Integer, Names, Real, ScaledInteger, Setting
from seglog.core.types import MAX_INT32, MAX_INT64, TimestampType
from tests.cases import case
from tests.core import kafka_keys
from tests.core.kafka_keys import KafkaKey, keys

OURS = {"seglog.validate.records"}


def bounds(key: KafkaKey) -> tuple[int, int, int | None]:
    """Least, greatest and odd other value of a whole number, as Kafka prints its validators."""
    limit = MAX_INT32 if key.type == "INT" else MAX_INT64
    match = re.fullmatch(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\](?: or (-?\d+))?", key.valid)
    if match is None:
        return -limit - 1, limit, None
    return int(match[1]), int(match[2] or limit), int(match[3]) if match[3] else None


def is_as_in_kafka(row: Setting, key: KafkaKey) -> bool:
    """Same type, default and range."""
    if row.rule.type != key.type.lower() or row.rule.format(row.default) != key.default.strip("[]"):
        return False
    rule = row.rule
    if isinstance(rule, Integer):
        return (rule.low, rule.high, rule.also) == bounds(key)
    if isinstance(rule, Real):
        return f"[{rule.low:g},...,{rule.high:g}]" == key.valid
    if isinstance(rule, Enumeration | Names):
        return f"[{', '.join(rule.choices if isinstance(rule, Enumeration) else rule.names)}]" == key.valid
    return key.valid == "null" if isinstance(rule, Boolean) else row.name in TOPIC_KEYS and not row.attribute


def test_the_topic_keys_are_those_of_kafka() -> None:
    kafka = keys(kafka_keys.TOPIC_KEYS)
    assert set(TOPIC_KEYS) - OURS == set(kafka)
    different = {name for name in kafka if not is_as_in_kafka(TOPIC_KEYS[name], kafka[name])}
    # Kafka takes any number for the key that its tests use, and has no default for it
    assert different == {"internal.segment.bytes"}


def test_the_directory_keys_are_those_of_kafka() -> None:
    kafka = keys(kafka_keys.DIRECTORY_KEYS)
    known = DIRECTORY_KEYS
    assert set(known) - OURS == set(kafka)
    different = {name for name in kafka if not is_as_in_kafka(known[name], kafka[name])}
    assert different == {
        # Kafka checks these when it uses them, or not at all; a 0 here would stop the cleaner or a checkpoint
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.max.bytes.per.second",
        "log.flush.scheduler.interval.ms",
        "replica.high.watermark.checkpoint.interval.ms",
        # Kafka has no default where another name of the same setting has it, and checks the one that counts
        "log.flush.interval.ms",
        "log.retention.hours",
        "log.retention.minutes",
        "log.retention.ms",
        "log.roll.hours",
        "log.roll.jitter.hours",
        "log.roll.jitter.ms",
        "log.roll.ms",
    }
    for name in different:
        row = known[name]
        assert kafka[name].default in ("null", str(row.default), "1.7976931348623157E308"), name


def test_every_key_is_documented_and_every_attribute_is_a_key() -> None:
    for row in [*TOPIC_KEYS.values(), *DIRECTORY_KEYS.values()]:
        assert row.doc
        assert row.rule.allowed
    attributes = {field.name for field in fields(LogConfig) if field.init}
    assert attributes == {row.attribute for row in TOPIC_KEYS.values() if row.attribute}
    config = LogConfig()
    for row in TOPIC_KEYS.values():
        if row.attribute:
            assert getattr(config, row.attribute) == row.default, row.name


# What Kafka 4.4's LogConfig.validate says to the same properties
ACCEPTED = [
    ("cleanup.policy", "", frozenset()),
    ("cleanup.policy", " ", frozenset()),
    ("cleanup.policy", "compact,compact", frozenset({"compact"})),
    ("cleanup.policy", " compact , delete ", frozenset({"compact", "delete"})),
    ("compression.type", "uncompressed", "uncompressed"),
    ("compression.gzip.level", "-1", -1),
    ("compression.zstd.level", "0", 0),
    ("segment.bytes", "1048576", 1048576),
    ("segment.ms", " 5 ", 5),
    ("segment.ms", "+5", 5),
    ("preallocate", "TRUE", True),
    ("preallocate", " true ", True),
    ("min.cleanable.dirty.ratio", "1e-1", 0.1),
    ("retention.ms", "-1", -1),
    ("retention.bytes", "-100", -100),
    ("message.timestamp.type", " LogAppendTime ", TimestampType.LOG_APPEND_TIME),
    ("segment.jitter.ms", "700000000000", 700000000000),
]
REFUSED = [
    ("cleanup.policy", "Compact", "none, one or more of compact, delete"),
    ("cleanup.policy", "compact,", "none, one or more of compact, delete"),
    ("cleanup.policy", ",", "none, one or more of compact, delete"),
    ("compression.type", "none", "uncompressed, zstd, lz4, snappy, gzip, producer"),
    ("compression.type", "GZIP", "uncompressed, zstd, lz4, snappy, gzip, producer"),
    ("compression.gzip.level", "0", "1 to 9, or -1"),
    ("compression.gzip.level", "10", "1 to 9, or -1"),
    ("compression.lz4.level", "0", "1 to 17"),
    ("compression.zstd.level", "-131073", "-131072 to 22"),
    ("segment.bytes", "1000", "1048576 to 2147483647"),
    ("segment.ms", "0x10", "1 to 9223372036854775807"),
    ("segment.ms", "1_000", "1 to 9223372036854775807"),
    ("segment.ms", "9223372036854775808", "1 to 9223372036854775807"),
    ("segment.ms", "9" * 5000, "1 to 9223372036854775807"),
    ("segment.ms", "", "1 to 9223372036854775807"),
    ("segment.ms", "1.0", "1 to 9223372036854775807"),
    ("preallocate", "yes", "true or false"),
    ("min.cleanable.dirty.ratio", "1.1", "0 to 1"),
    ("min.cleanable.dirty.ratio", "Infinity", "0 to 1"),
    ("max.compaction.lag.ms", "0", "1 to 9223372036854775807"),
    ("retention.ms", "-2", "-1 to 9223372036854775807"),
    ("message.timestamp.type", "createtime", "CreateTime, LogAppendTime"),
    ("segment.index.bytes", "3", "4 to 2147483647"),
    ("segment.jitter.ms", "-1", "0 to 9223372036854775807"),
    ("max.message.bytes", "-1", "0 to 2147483647"),
    ("flush.messages", "0", "1 to 9223372036854775807"),
    ("unclean.leader.election.enable", "maybe", "true or false"),
    # here we say no and Kafka yes: not a number, and what has no effect here
    ("min.cleanable.dirty.ratio", "NaN", "0 to 1"),
    ("internal.segment.bytes", "13", "14 to 2147483647"),
    ("remote.storage.enable", "true", "only false, since seglog has no tiered storage"),
    ("local.retention.ms", "5", "only -2, since seglog has no tiered storage"),
    ("leader.replication.throttled.replicas", "0:1,2", "the literal '*' or a list of partition:broker"),
    ("follower.replication.throttled.replicas", "*,0:1", "the literal '*' or a list of partition:broker"),
    # Python's own types
    ("segment.ms", True, "1 to 9223372036854775807"),
    ("segment.ms", 5.0, "1 to 9223372036854775807"),
    ("segment.ms", None, "1 to 9223372036854775807"),
    ("preallocate", 1, "true or false"),
    ("preallocate", None, "true or false"),
    ("min.cleanable.dirty.ratio", False, "0 to 1"),
    ("min.cleanable.dirty.ratio", [], "0 to 1"),
    ("compression.type", None, "uncompressed, zstd, lz4, snappy, gzip, producer"),
    ("cleanup.policy", 5, "none, one or more of compact, delete"),
    ("cleanup.policy", [["compact"]], "none, one or more of compact, delete"),
    ("message.timestamp.type", 7, "CreateTime, LogAppendTime"),
]


@pytest.mark.parametrize(("name", "text", "value"), ACCEPTED)
def test_texts_that_kafka_accepts(name: str, text: str, value: object) -> None:
    config = LogConfig.from_mapping({name: text})
    assert getattr(config, TOPIC_KEYS[name].attribute) == value
    assert LogConfig.from_mapping({name: value}) == config


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED)
def test_a_bad_value_names_key_value_and_range(name: str, value: object, allowed: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        LogConfig.from_mapping({name: value})
    assert str(caught.value).partition("; did you mean")[0] == f"{name}={value!r} is not allowed: {allowed}"


def test_a_misspelled_value_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidConfigError, match=r"; did you mean CreateTime\?$"):
        LogConfig.from_mapping({"message.timestamp.type": "createtime"})


@pytest.mark.parametrize(("name", "near"), [("segment.byte", "segment.bytes"), ("retention_ms", "retention.ms")])
def test_an_unknown_key_names_itself_and_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"'{re.escape(name)}'; did you mean {re.escape(near)}"):
        LogConfig.from_mapping({name: "1"})
    with pytest.raises(InvalidConfigError, match=r"unknown topic configuration 'xyzzy'$"):
        LogConfig.from_mapping({"xyzzy": "1"})


@pytest.mark.parametrize("text", ["", "*", "0:1", " 0:1 , 1:2", "0:1,"])
def test_throttled_replicas_are_a_list_or_all(text: str) -> None:
    config = LogConfig.from_mapping({"leader.replication.throttled.replicas": text})
    assert config == LogConfig()
    assert config.overrides() == {"leader.replication.throttled.replicas": text.replace(" ", "")}


def test_a_key_without_effect_passes_with_its_default() -> None:
    given = {name: row.default for name, row in REFUSED_TOPIC_KEYS.items()}
    config = LogConfig.from_mapping(given | {"remote.storage.enable": False, "local.retention.ms": -2})
    assert config == LogConfig()
    assert config.overrides() == given


def test_the_compaction_lags_may_not_cross() -> None:
    LogConfig.from_mapping({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"})
    with pytest.raises(InvalidConfigError, match=r"min.compaction.lag.ms=10 .* at most max.compaction.lag.ms=5"):
        LogConfig.from_mapping({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfigError, match=r"max\.compaction\.lag\.ms"):
        LogConfig(min_compaction_lag_ms=2, max_compaction_lag_ms=1)


def test_small_segments_by_the_internal_key() -> None:
    config = LogConfig.from_mapping({"internal.segment.bytes": "1000", "segment.bytes": "2000000"})
    assert config.segment_bytes == 1000
    assert config.overrides() == {"internal.segment.bytes": "1000", "segment.bytes": "2000000"}
    assert config.with_overrides({"segment.bytes": "3000000"}).segment_bytes == 1000
    assert LogConfig(segment_bytes=1000).overrides() == {"internal.segment.bytes": "1000"}
    assert LogConfig(segment_bytes=2000000).overrides() == {"segment.bytes": "2000000"}
    assert replace(config, segment_ms=5).segment_bytes == 1000


def test_derived_values_of_a_log_configuration() -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact", "delete"}), segment_ms=10, max_compaction_lag_ms=3)
    assert (config.compact, config.delete, config.max_segment_ms) == (True, True, 3)
    assert LogConfig(segment_ms=10, max_compaction_lag_ms=3).max_segment_ms == 10
    neither = LogConfig.from_mapping({"cleanup.policy": ""})
    assert (neither.compact, neither.delete) == (False, False)


def test_overrides_add_up_and_defaults_are_none() -> None:
    base = LogConfig.from_mapping({"retention.ms": "604800000"})
    assert base.overrides() == {"retention.ms": "604800000"}
    more = base.with_overrides({"segment.ms": 5, "retention.ms": 7})
    assert more.overrides() == {"retention.ms": "7", "segment.ms": "5"}
    assert base.overrides() == {"retention.ms": "604800000"}
    started = more.as_defaults().with_overrides({"flush.ms": 1})
    assert started.overrides() == {"flush.ms": "1"}
    assert (started.segment_ms, started.retention_ms) == (5, 7)


def values(row: Setting) -> st.SearchStrategy[object]:
    """Values that the key takes."""
    rule = row.rule
    if isinstance(rule, Integer):
        return st.integers(rule.low, rule.high)
    if isinstance(rule, Real):
        return st.floats(rule.low, rule.high)
    if isinstance(rule, Enumeration):
        return st.sampled_from(list(rule.choices.values()))
    if isinstance(rule, Names):
        return st.frozensets(st.sampled_from(rule.names))
    return st.booleans() if isinstance(rule, Boolean) else st.just(row.default)


@given(st.data())
def test_overrides_read_back(data: st.DataObject) -> None:
    case()
    rows = [row for row in TOPIC_KEYS.values() if "compaction.lag" not in row.name]
    chosen = data.draw(st.lists(st.sampled_from(rows), unique_by=lambda row: row.name))
    config = LogConfig.from_mapping({row.name: data.draw(values(row)) for row in chosen})
    assert set(config.overrides()) == {row.name for row in chosen}
    again = LogConfig.from_mapping(config.overrides())
    assert again == config
    assert again.overrides() == config.overrides()


TEXTS = st.text(max_size=8) | st.sampled_from(["-1", "0", "1e400", "nan", "\u0661", "true,", "compact\n", "0" * 5000])


@given(st.sampled_from(sorted(TOPIC_KEYS)), TEXTS | st.none() | st.integers() | st.floats() | st.binary())
def test_any_value_is_taken_or_refused(name: str, value: object) -> None:
    case()
    try:
        config = LogConfig.from_mapping({name: value})
    except InvalidConfigError as error:
        refusal = str(error)
        assert name in refusal or "compaction.lag" in refusal
    else:
        assert LogConfig.from_mapping(config.overrides()) == config


# Log directories


def topics(**mapping: object) -> LogConfig:
    return LogDirConfig.from_mapping({name.replace("_", "."): value for name, value in mapping.items()}).topics


def test_a_directory_starts_from_kafkas_defaults() -> None:
    assert LogDirConfig.from_mapping({}) == LogDirConfig()
    assert LogDirConfig().topics == LogConfig()
    assert LogDirConfig().topics.overrides() == {}


def test_of_several_names_the_finest_unit_counts() -> None:
    assert topics(log_retention_hours="1").retention_ms == 3_600_000
    assert topics(log_retention_hours="1", log_retention_minutes="1").retention_ms == 60_000
    assert topics(log_retention_hours="1", log_retention_minutes="1", log_retention_ms="1").retention_ms == 1
    assert topics(log_retention_hours="-1").retention_ms == -1
    assert topics(log_roll_hours=2).segment_ms == 7_200_000
    assert topics(log_roll_hours=2, log_roll_ms=5).segment_ms == 5
    assert topics(log_roll_jitter_hours=2).segment_jitter_ms == 7_200_000
    config = LogDirConfig.from_mapping({"log.flush.scheduler.interval.ms": "100"})
    assert (config.topics.flush_ms, config.log_flush_scheduler_interval_ms) == (100, 100)
    assert topics(log_flush_scheduler_interval_ms=100, log_flush_interval_ms=7).flush_ms == 7


def test_every_topic_default_can_be_set_and_is_no_override() -> None:
    for topic_key, names in SYNONYMS.items():
        row = names[0]
        config = LogDirConfig.from_mapping({row.name: row.rule.format(row.default)})
        assert config == LogDirConfig(), topic_key
        assert config.topics.overrides() == {}
    throttled = {f"{side}.replication.throttled.replicas" for side in ("leader", "follower")}
    assert set(TOPIC_KEYS) - set(SYNONYMS) == {"internal.segment.bytes", *throttled, *REFUSED_TOPIC_KEYS}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log.retention.hours", "0", "log.retention.hours='0' is not allowed: 1 to 2147483647, or -1"),
        ("log.retention.ms", "-2", "log.retention.ms='-2' is not allowed"),
        ("log.segment.bytes", "14", "log.segment.bytes='14' is not allowed: 1048576 to"),
        ("log.cleaner.dedupe.buffer.size", 1024 * 1024, "more than 1048576 for each of the 1 cleaner threads"),
        ("log.cleaner.threads", -1, "log.cleaner.threads=-1"),
        ("retention.ms", "1", "as the default of all topics it is 'log.retention.ms'"),
        ("log.retention.hour", "1", "did you mean log.retention.hours?"),
        ("log.cleaner.io.max.bytes.per.second", "inf", "is not allowed: 1 to 1.79769e+308"),
    ],
)
def test_a_bad_directory_key_or_value(name: str, value: object, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(words)):
        LogDirConfig.from_mapping({name: value})


def test_a_name_that_does_not_count_is_checked_all_the_same() -> None:
    with pytest.raises(InvalidConfigError, match=r"log\.retention\.hours"):
        topics(log_retention_hours="x", log_retention_ms="1")


def test_a_scaled_number_formats_in_its_unit() -> None:
    hours = next(row for row in SYNONYMS["retention.ms"] if row.name.endswith("hours"))
    assert isinstance(hours.rule, ScaledInteger)
    assert hours.rule.format(hours.parse("24")) == "24"
    assert hours.rule.format(hours.parse("-1")) == "-1"


def test_cleanup_policy_keeps_the_order_it_was_given() -> None:
    for policy in ("delete,compact", "compact,delete"):
        given = LogConfig.from_mapping({"cleanup.policy": policy})
        assert given.overrides() == {"cleanup.policy": policy}
        assert given.cleanup_policy == frozenset({"compact", "delete"})
        assert given.with_overrides({"segment.ms": "5"}).overrides()["cleanup.policy"] == policy
