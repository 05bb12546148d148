"""Which listeners are refused because other machines could use them without authentication."""

from __future__ import annotations

import pytest

from seglog.broker.security.exposure import check_exposure
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import InvalidConfigError

MTLS = {"listener.name.ssl.ssl.client.auth": "required"}
SCRAM = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
OAUTH = {"sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER"}
PLAIN = {"sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_on_loopback_everything_is_allowed(host: str, protocol: str) -> None:
    check_exposure(BrokerConfig.from_mapping({"listeners": f"{protocol}://{host}:9092"}))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "broker-1.example"])
def test_metrics_beyond_loopback_are_for_known_clients(host: str) -> None:
    listen = {"listeners": "PLAINTEXT://127.0.0.1:1"}
    required = {"listener.name.metrics.ssl.client.auth": "required"}
    check_exposure(BrokerConfig.from_mapping({**listen, "metrics.listener": "127.0.0.1:9308"}))
    check_exposure(BrokerConfig.from_mapping({**listen, **required, "metrics.listener": f"SSL://{host}:9308"}))
    for where, more in ((f"{host}:9308", {}), (f"{host}:9308", required), (f"SSL://{host}:9308", {})):
        keys = {**listen, **more, "metrics.listener": where}
        with pytest.raises(InvalidConfigError, match=r"metrics\.listener=.*--insecure"):
            check_exposure(BrokerConfig.from_mapping(keys))
        check_exposure(BrokerConfig.from_mapping({**keys, "seglog.insecure.listeners": "true"}))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]", "10.0.0.1", "[2001:db8::1]", "broker-1.example"])
@pytest.mark.parametrize(
    ("protocol", "more", "complaint"),
    [
        ("PLAINTEXT", {}, "PLAINTEXT lets every client do everything"),
        ("SSL", {}, "SSL without ssl.client.auth=required"),
        ("SSL", {"ssl.client.auth": "requested"}, "SSL without ssl.client.auth=required"),
        ("SSL", MTLS, None),
        ("SASL_PLAINTEXT", SCRAM, None),
        ("SASL_PLAINTEXT", PLAIN, "PLAIN would send passwords or tokens without TLS"),
        ("SASL_PLAINTEXT", OAUTH, "OAUTHBEARER would send passwords or tokens without TLS"),
        ("SASL_SSL", PLAIN, None),
        ("SASL_SSL", OAUTH, None),
    ],
)
def test_beyond_loopback_clients_must_authenticate(
    host: str, protocol: str, more: dict[str, str], complaint: str | None
) -> None:
    keys = {"listeners": f"LOCAL://127.0.0.1:1,{protocol}://{host}:9092", **more}
    keys["listener.security.protocol.map"] = f"LOCAL:PLAINTEXT,{protocol}:{protocol}"
    if complaint is None:
        check_exposure(BrokerConfig.from_mapping(keys))
        return
    with pytest.raises(InvalidConfigError, match=complaint) as refused:
        check_exposure(BrokerConfig.from_mapping(keys))
    assert "--insecure" in str(refused.value)
    check_exposure(BrokerConfig.from_mapping({**keys, "seglog.insecure.listeners": "true"}))
