"""Real Kafka for our tests: nodes, Java tools, and Kafka's own log as an oracle. Only `tests/interop` needs a JVM."""

from tests.kafka.jars import CURRENT, OLD, KafkaVersion, kafka_libs
from tests.kafka.node import KafkaNode
from tests.kafka.records import ConsumedRecord, Headers, Recipe, Record
from tests.kafka.zk_node import ZkKafkaNode

__all__ = [
    "CURRENT",
    "OLD",
    "ConsumedRecord",
    "Headers",
    "KafkaNode",
    "KafkaVersion",
    "Recipe",
    "Record",
    "ZkKafkaNode",
    "kafka_libs",
]
