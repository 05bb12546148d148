"""`pathway_app.py BOOTSTRAP`: copies the topic "lines" to "copies" until it is killed, from its own snapshots."""

import sys

import pathway as pw

settings = {
    "bootstrap.servers": sys.argv[1],
    "group.id": "copiers",
    "session.timeout.ms": "6000",
    "auto.offset.reset": "earliest",
}
lines = pw.io.kafka.read(settings, topic="lines", format="plaintext", name="lines", autocommit_duration_ms=300)
pw.io.kafka.write(lines, settings, topic_name="copies", format="plaintext", key=lines.data, value=lines.data)
snapshots = pw.persistence.Backend.filesystem("snapshots")
pw.run(
    persistence_config=pw.persistence.Config(snapshots, snapshot_interval_ms=500),
    monitoring_level=pw.MonitoringLevel.NONE,
)
