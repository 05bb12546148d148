"""Kafka's properties of clients: the table against Kafka's own, and what is refused with which words."""

from __future__ import annotations

import copy
import re
import socket
from typing import Final

import pytest

from seglog.client.bootstrap import HostPort
from seglog.client.client_config import CLIENT_SETTINGS, ClientConfig, Use
from seglog.client.security.security_config import SECURITY_SETTINGS
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import Boolean, Setting
from tests.client import kafka_client_keys
from tests.core.kafka_keys import KafkaKey, keys

_BOTH: Final = keys(kafka_client_keys.BOTH)
_CONSUMER: Final = _BOTH | keys(kafka_client_keys.CONSUMER)
_PRODUCER: Final = _BOTH | keys(kafka_client_keys.PRODUCER)
_ROWS: Final = {**CLIENT_SETTINGS, **SECURITY_SETTINGS}
_BOOTSTRAP: Final = {"bootstrap.servers": "a:1"}
_PLAIN: Final = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="alice" password="geheim";',
}


def config(use: Use = "read", **properties: str) -> ClientConfig:
    """Of properties with underscores for dots."""
    named = {name.replace("_", "."): text for name, text in properties.items()}
    return ClientConfig.from_mapping({**_BOOTSTRAP, **named}, use=use)


def is_accepted(row: Setting, text: str) -> bool:
    try:
        row.parse(text)
    except InvalidConfigError:
        return False
    return True


def is_as_in_kafka(row: Setting, key: KafkaKey) -> bool:
    """Same default, and the same numbers are valid; words are compared where Kafka lists them."""
    default = "" if row.default is None else row.rule.format(row.default)
    if default != {"null": ""}.get(key.default, key.default.strip("[]").replace(", ", ",")):
        return False
    if match := re.fullmatch(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\](?: or (-?\d+))?", key.valid):
        low, high, other = int(match[1]), int(match[2] or 2**31 - 1), match[3]
        edges = [is_accepted(row, str(number)) for number in (low - 1, low, high)]
        return edges == [other == str(low - 1), True, True] and (other is None or is_accepted(row, other))
    if match := re.search(r"\[(.+)\]$", key.valid):
        return all(is_accepted(row, word) for word in match[1].split(", ")) and not is_accepted(row, "other")
    return row.rule.type != Boolean.type or key.type == "BOOLEAN"


def test_ranges_and_defaults_are_those_of_kafka() -> None:
    different = {name for name, row in _ROWS.items() if not is_as_in_kafka(row, {**_CONSUMER, **_PRODUCER}[name])}
    assert different == {
        # "seglog" names the client in a broker's log; PEM is seen at the file; GSSAPI and the rest are refused
        "bootstrap.servers",
        "client.id",
        "sasl.mechanism",
        "ssl.keystore.type",
        "ssl.truststore.type",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        # 0 would mean not to wait at all
        "request.timeout.ms",
        # fewer and larger answers: a scan reads everything
        "fetch.max.bytes",
        "max.partition.fetch.bytes",
        "receive.buffer.bytes",
        "send.buffer.bytes",
    }


@pytest.mark.parametrize(("use", "table"), [("read", _CONSUMER), ("write", _PRODUCER)])
def test_every_key_of_kafka_is_known(use: Use, table: dict[str, KafkaKey]) -> None:
    unknown = []
    for name, key in table.items():
        try:
            ClientConfig.from_mapping({**_BOOTSTRAP, name: key.default}, use=use)
        except InvalidConfigError as error:
            if "unknown" in str(error):
                unknown.append(name)
    assert unknown == []


def test_values_have_units_of_python() -> None:
    made = config(
        bootstrap_servers="a:1, b",
        request_timeout_ms="1500",
        retry_backoff_ms="250",
        fetch_max_bytes="1048576",
        isolation_level="READ_COMMITTED",
        check_crcs="false",
    )
    assert made.bootstrap == (HostPort("a", 1), HostPort("b", 9092))
    assert (made.timeout, made.retry_backoff, made.fetch_max_bytes) == (1.5, 0.25, 1 << 20)
    assert (made.isolation_level, made.check_crcs) == ("read_committed", False)


def test_a_time_without_end_is_one_that_a_socket_takes() -> None:
    made = config(socket_connection_setup_timeout_ms=str(2**63 - 1), retry_backoff_ms="0")
    assert (made.connect_timeout, made.retry_backoff) == (1e9, 0)
    with socket.socket() as one:
        one.settimeout(made.connect_timeout)


def test_names_are_taken_in_any_case() -> None:
    assert (
        ClientConfig.from_mapping({"Bootstrap.Servers": "a:1", "FETCH.MIN.BYTES": "7"}, use="read").fetch_min_bytes == 7
    )


def test_names_without_effect_are_reported() -> None:
    made = config("read", group_id="g", acks="1", max_poll_records="5", metadata_max_age_ms="1")
    assert made.without_effect == ("acks", "group.id", "max.poll.records", "metadata.max.age.ms")
    assert config("write", fetch_min_bytes="5", linger_ms="5").without_effect == ("fetch.min.bytes", "linger.ms")


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"fetch.max.byte": "1"}, "did you mean fetch.max.bytes?"),
        ({"fetch.max.bytes": "-1"}, "fetch.max.bytes='-1' is not allowed: 0 to 2147483647"),
        ({"bootstrap.servers": "a:b"}, "bootstrap.servers='a:b'"),
        ({"bootstrap.servers": ""}, "bootstrap.servers"),
        ({"bootstrap.servers": "${env:BROKERS}"}, "only ssl.* and sasl.* may have references"),
        ({"sasl.kerberos.service.name": "kafka"}, "Kerberos is not supported"),
        ({"sasl.mechanism": "GSSAPI"}, "GSSAPI, which is Kerberos, is not supported"),
        ({"ssl.engine.factory.class": "a.B"}, "ssl.truststore"),
        ({"interceptor.classes": "a.B"}, "interceptor.classes is not supported"),
        ({"sasl.password": "geheim"}, "set sasl.jaas.config"),
        ({"key.deserializer": "a.B"}, "cast the column"),
        ({"config.providers": "file,vault"}, "file, directory, env"),
        ({"config.providers.vault.class": "a.Vault"}, "FileConfigProvider"),
        ({"config.providers.file.param.allowed.paths": "/etc"}, "every file that the user may read"),
        ({"sasl.login.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler"}, "Java"),
    ],
)
def test_refused_with_a_remedy(properties: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(words)) as raised:
        ClientConfig.from_mapping({**_BOOTSTRAP, **properties}, use="read")
    assert "geheim" not in str(raised.value)


def test_bootstrap_servers_are_required() -> None:
    with pytest.raises(InvalidConfigError, match=r"bootstrap\.servers is missing"):
        ClientConfig.from_mapping({}, use="read")


def test_config_providers_that_are_there_anyway_may_be_named() -> None:
    kafka = "org.apache.kafka.common.config.provider"
    properties = {"config.providers": "file,env", "config.providers.file.class": f"{kafka}.FileConfigProvider"}
    assert ClientConfig.from_mapping({**_BOOTSTRAP, **properties}, use="read").without_effect == ()


def test_idempotence_gives_way_to_options_that_exclude_it_unless_it_is_asked_for() -> None:
    assert config("write").enable_idempotence
    assert not config("write", acks="1").enable_idempotence
    assert not config("write", max_in_flight_requests_per_connection="6").enable_idempotence
    with pytest.raises(InvalidConfigError, match=r"enable\.idempotence=true excludes acks=0"):
        config("write", acks="0", enable_idempotence="true")


def test_a_delivery_takes_at_least_one_request() -> None:
    assert config("write", request_timeout_ms="200000").delivery_timeout == 200
    with pytest.raises(
        InvalidConfigError, match=r"delivery\.timeout\.ms=1 must not be below request\.timeout\.ms=30000"
    ):
        config("write", delivery_timeout_ms="1")


def test_secrets_are_hidden_and_copied_as_they_are() -> None:
    made = ClientConfig.from_mapping({**_BOOTSTRAP, **_PLAIN, "ssl.key.password": "geheim"}, use="read")
    for text in (repr(made), str(made), f"{made.security}"):
        assert "geheim" not in text
        assert "sasl_jaas_config=[hidden]" in text
    copied = copy.deepcopy(made)  # by what pickle calls too, on the way to Spark's workers
    assert copied == made
    assert hash(copied) == hash(made)
    assert copied.security.sasl_jaas_config == _PLAIN["sasl.jaas.config"]
