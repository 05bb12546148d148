"""Spark's own Kafka connector (spark-sql-kafka-0-10) for our tests, as Spark's settings.

Maven copies its four jars once into ``.cache``, as `tests.kafka.jars` does with Kafka's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.kafka.jars import cache_dir, copy_jars, made_once

__all__ = ["CONNECTOR", "connector_config", "connector_jars"]

CONNECTOR: Final = "4.2.0"
"""The newest one that Maven Central has; nothing it calls changed in Spark 4.3."""

_POM: Final = Path(__file__).parent / "pom-connector.xml"


def connector_jars() -> list[Path]:
    """The jars of ``spark.read.format("kafka")``; a few seconds the first time."""
    libs = made_once(cache_dir() / f"connector-{CONNECTOR}" / "libs", lambda target: copy_jars(_POM, target))
    return sorted(libs.glob("*.jar"))


def connector_config() -> dict[str, str]:
    """The configuration with which a Spark session must be built to have the connector."""
    return {"spark.jars": ",".join(map(str, connector_jars()))}
