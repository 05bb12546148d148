"""A ZooKeeper with a port for TLS, which asks for certificates, and a login at both ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from seglog.broker.security.zookeeper_keys import zookeeper_security
from seglog.cluster.zookeeper_security import ZooKeeperSecurity
from seglog.core.broker_config import BrokerConfig
from tests.kafka.zookeeper import ZooKeeperNode
from tests.kit.certificates import Authority, Identity
from tests.kit.ports import free_port

_NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
_PROVIDERS = "org.apache.zookeeper.server.auth"
LOGIN = 'org.apache.zookeeper.server.auth.DigestLoginModule required username="{}" password="{}";'


class SecuredZooKeeper(NamedTuple):
    """Its certificate is for localhost. It knows the users kafka, other and german, whose passwords are kafka-secret,
    other-secret and gehäuse."""

    node: ZooKeeperNode
    tls_port: int
    authority: Authority
    client: Identity

    @property
    def plain(self) -> str:
        return f"localhost:{self.node.port}"

    @property
    def tls(self) -> str:
        return f"localhost:{self.tls_port}"

    def keys(self, **changes: str) -> dict[str, str]:
        """Of TLS with a certificate, with other values; `_` stands for `.` in their names."""
        return {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.truststore.location": str(self.authority.certificate),
            "zookeeper.ssl.keystore.location": str(self.client.store),
            **{name.replace("_", "."): value for name, value in changes.items()},
        }


def login(user: str = "kafka", password: str = "kafka-secret") -> dict[str, str]:
    return {"cluster.store.jaas.config": LOGIN.format(user, password)}


def security(keys: dict[str, str]) -> ZooKeeperSecurity:
    return zookeeper_security(BrokerConfig.from_mapping(keys))


@contextmanager
def secured_zookeeper(path: Path) -> Iterator[SecuredZooKeeper]:
    authority = Authority(path / "certificates")
    own, client = authority.issue("zookeeper", "DNS:localhost"), authority.issue("broker", "DNS:broker")
    jaas = path / "jaas.conf"
    jaas.write_text(
        'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_kafka="kafka-secret" '
        'user_other="other-secret" user_german="gehäuse"; };'
    )
    tls_port = free_port()
    properties = {
        "secureClientPort": str(tls_port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": _NETTY,
        "ssl.keyStore.location": str(own.store),
        "ssl.trustStore.location": str(authority.certificate),
        "ssl.enabledProtocols": "TLSv1.2,TLSv1.3",
        "ssl.clientAuth": "need",
        "authProvider.x509": f"{_PROVIDERS}.X509AuthenticationProvider",
        "authProvider.sasl": f"{_PROVIDERS}.SASLAuthenticationProvider",
    }
    options = [f"-Djava.security.auth.login.config={jaas}", "-Djava.net.preferIPv4Stack=true"]
    with ZooKeeperNode(path / "zookeeper", properties, jvm_options=options) as node:
        yield SecuredZooKeeper(node, tls_port, authority, client)
