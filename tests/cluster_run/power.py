"""A power cut, as far as a test can have one: what a machine had not flushed is gone, and it is another start of it."""

from __future__ import annotations

import json
from pathlib import Path

from seglog.records.batch import entries
from seglog.storage.formats.paths import LIFE
from tests.kit.cluster import ClusterBroker


def cut_power(broker: ClusterBroker, partition: str, lost_batches: int) -> int:
    """Kill a broker whose machine stops: the last batches of one partition were not flushed. Where that ends now."""
    if broker.is_running:
        broker.kill()
    for directory in broker.directories:
        path = directory / LIFE
        life = json.loads(path.read_bytes())
        path.write_text(json.dumps({**life, "boot": "an earlier start of the machine"}))
    return _drop(broker.path / partition / f"{0:020d}.log", lost_batches)


def _drop(path: Path, count: int) -> int:
    """Cut the last batches off, and half of one more byte range: a write is rarely torn at a batch."""
    data = path.read_bytes()
    positions = [entry.position for entry in entries(data)]
    kept = len(positions) - count
    if count:
        path.write_bytes(data[: positions[kept] + 7])
    return kept
