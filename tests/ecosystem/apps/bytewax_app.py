"""`bytewax_app.py BOOTSTRAP`: copies the topic "lines" to "copies" until it is killed, from its own snapshots."""

import sys
from datetime import timedelta
from pathlib import Path

from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

brokers = sys.argv[1].split(",")
snapshots = Path("snapshots")
if not snapshots.exists():
    snapshots.mkdir()
    init_db_dir(snapshots, 1)
flow = Dataflow("copier")
lines = kafka.input("lines", flow, brokers=brokers, topics=["lines"], batch_size=100)
copies = op.map("copy", lines.oks, lambda message: KafkaSinkMessage(message.key, message.value))
kafka.output("copies", copies, brokers=brokers, topic="copies")
cluster_main(
    flow,
    [],
    0,
    epoch_interval=timedelta(seconds=0.5),
    recovery_config=RecoveryConfig(snapshots, backup_interval=timedelta(0)),
)
