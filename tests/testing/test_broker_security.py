"""A secured broker for users' tests: every protocol and mechanism, and certificates that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import RequestFailedError
from seglog.testing import Broker, BrokerError
from seglog.testing.broker_security import MECHANISMS, SecurityProtocol
from tests.broker.python_clients import AdminClient


def topics(broker: Broker, **login: Any) -> list[str]:
    """By our own client, with the properties of Kafka's."""
    properties = broker.client_properties(style="java", **login)
    with ClusterConnections(ClientConfig.from_mapping(properties, use="read")) as cluster:
        return list(cluster.metadata().topics)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_users_log_in_by_all_mechanisms(protocol: SecurityProtocol) -> None:
    with Broker(["orders"], security=protocol) as broker:
        for mechanism in MECHANISMS:
            assert topics(broker, mechanism=mechanism) == ["orders"]
            with pytest.raises(RequestFailedError, match="SASL_AUTHENTICATION_FAILED"):
                topics(broker, mechanism=mechanism, password="wrong")
        admin = AdminClient(broker.client_properties("bob"))
        assert list(admin.list_topics(timeout=30).topics) == ["orders"]
        broker.restart()
        broker.reset()
        assert topics(broker, user="admin") == ["orders"]


def test_certificates_of_clients() -> None:
    with Broker(["orders"], security="SSL") as broker:
        assert topics(broker) == ["orders"]
        for certificate in (broker.security.expired_certificate, broker.security.foreign_certificate):
            with pytest.raises(RequestFailedError):
                topics(broker, certificate=certificate)
        assert list(AdminClient(broker.client_properties()).list_topics(timeout=30).topics) == ["orders"]


def test_a_process_is_secured_as_a_thread_is() -> None:
    with Broker(["orders"], security="SASL_SSL", users={"zoe": "x y"}, process=True) as broker:
        assert topics(broker, user="zoe") == ["orders"]
        broker.restart(kill=True)
        assert topics(broker, user="zoe", mechanism="PLAIN") == ["orders"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BrokerError, match="none of SSL"):
        Broker(security="TLS")  # type: ignore[arg-type]
    with pytest.raises(BrokerError, match="schema registry"):
        Broker(security="SSL", registry=True)
    with pytest.raises(BrokerError, match="need `security`"):
        Broker(users={"a": "b"})
    with pytest.raises(BrokerError, match="commas"):
        Broker(security="SASL_SSL", users={"a": "b,c"})
    with pytest.raises(BrokerError, match="has no security"):
        Broker().security  # noqa: B018
    with Broker(security="SASL_SSL") as broker:
        with pytest.raises(BrokerError, match="no user 'eve': there are admin, alice, bob"):
            broker.client_properties("eve")
        with pytest.raises(BrokerError, match="none of PLAIN"):
            broker.client_properties(mechanism="GSSAPI")
