"""Other people's clients in Python, whose modules warn of themselves when they are imported, and are not typed."""

from __future__ import annotations

import importlib
import socket
import ssl
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    kafka: Any = importlib.import_module("kafka")
    aiokafka: Any = importlib.import_module("aiokafka")
    aiokafka_admin: Any = importlib.import_module("aiokafka.admin")
    aiokafka_abc: Any = importlib.import_module("aiokafka.abc")
    aiokafka_errors: Any = importlib.import_module("aiokafka.errors")
    kafka_oauth: Any = importlib.import_module("kafka.net.sasl.oauth")


class _Socket(socket.socket):
    """kafka-python leaves one behind when it is closed while it connects, and a test may not leave any."""

    def __del__(self) -> None:
        self.close()


class ClosedTlsSocket(ssl.SSLSocket):
    """As `_Socket`, for ``SSLContext.sslsocket_class``."""

    def __del__(self) -> None:
        self.close()


importlib.import_module("kafka.net.inet").KafkaNetSocket.socket = lambda _, *kind: _Socket(*kind)

_AiokafkaConnection: Any = importlib.import_module("aiokafka.conn").AIOKafkaConnection
_close_aiokafka: Any = _AiokafkaConnection.close


def _abort_aiokafka(connection: Any, reason: Any = None, exc: Any = None) -> Any:
    """Close without a wait for the broker's own end of TLS, which may come after the event loop has been closed."""
    transport = connection._writer and connection._writer.transport
    if transport is not None and transport.get_extra_info("ssl_object") is not None:
        transport.abort()
    return _close_aiokafka(connection, reason, exc)


_AiokafkaConnection.close = _abort_aiokafka

confluent_kafka: Any = importlib.import_module("confluent_kafka")
Producer: Any = confluent_kafka.Producer
_confluent: Any = importlib.import_module("confluent_kafka.admin")
AdminClient: Any = _confluent.AdminClient
AlterConfigOpType: Any = _confluent.AlterConfigOpType
ConfigEntry: Any = _confluent.ConfigEntry
ConfigResource: Any = _confluent.ConfigResource
ConfigSource: Any = _confluent.ConfigSource
NewPartitions: Any = _confluent.NewPartitions
NewTopic: Any = _confluent.NewTopic
OffsetSpec: Any = _confluent.OffsetSpec
ResourceType: Any = _confluent.ResourceType
