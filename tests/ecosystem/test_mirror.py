"""MirrorMaker 2: seglog and Kafka mirror each other's topics and group offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.ecosystem.artefacts import jars
from tests.ecosystem.connect import JVM
from tests.ecosystem.places import Place
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail, fill
from tests.kafka.process import JavaProcess, write_properties
from tests.kit.ports import free_port
from tests.kit.topics import admin_client, commit, committed
from tests.kit.waiting import wait_until

_EACH: Final = 3_000
_COMMITTED: Final = 1_000
_SECONDS: Final = 180


def test_mirror_maker_copies_both_ways(place: Place, tmp_path: Path, report: Report) -> None:
    report.of("MirrorMaker 2", "4.3.0", "both ways to and from Kafka, exactly once, with group offsets")
    with Place("kafka", tmp_path / "peer") as peer:
        for near, topic in ((place, "here"), (peer, "there")):
            near.create(topic, partitions=1)
            fill(near.bootstrap, topic, _records(topic, range(_EACH // 2)))
            commit(near.bootstrap, f"readers-{topic}", topic, _COMMITTED)
        process = JavaProcess(
            main="org.apache.kafka.connect.mirror.MirrorMaker",
            class_path=f"{jars('connect')}/*",
            arguments=[str(write_properties(tmp_path / "mirror.properties", _settings(place, peer)))],
            log_file=tmp_path / "mirror.log",
            jvm_options=JVM,
        )
        try:
            counted = _mirrored(place, peer, "here", "a.here", place)
            counted += _mirrored(peer, place, "there", "b.there", place)
        finally:
            process.kill()
    report.counted(2 * _EACH, counted)


def _mirrored(near: Place, far: Place, topic: str, copy: str, disturbed: Place) -> int:
    """The number of records in the copy; they are those of the topic, in order."""
    _wait_for_topic(far, copy)
    with Tail(far.bootstrap, copy) as tail:
        tail.read_until(lambda records: len(records) >= _EACH // 2, _SECONDS)
        if near is disturbed:
            near.disturb()
        fill(near.bootstrap, topic, _records(topic, range(_EACH // 2, _EACH)))
        tail.read_until(lambda records: len(records) >= _EACH, _SECONDS)
        found = tail.read_on(3)
    assert found == list(_records(topic, range(_EACH)))
    group = f"readers-{topic}"
    wait_until(lambda: 0 < committed(far.bootstrap, group, copy) <= _COMMITTED, f"offsets of {group}", _SECONDS)
    return len(found)


def _wait_for_topic(place: Place, topic: str) -> None:
    admin = admin_client(place.bootstrap)
    wait_until(lambda: topic in admin.list_topics(timeout=60).topics, f"the topic {topic}", _SECONDS)


def _records(topic: str, numbers: range) -> Iterator[tuple[str, str]]:
    return ((f"k{number}", f"{topic} {number}") for number in numbers)


def _settings(place: Place, peer: Place) -> dict[str, str]:
    settings = {
        "clusters": "a,b",
        "a.bootstrap.servers": place.bootstrap,
        "b.bootstrap.servers": peer.bootstrap,
        "tasks.max": "1",
        "topics": "here,there",
        "groups": "readers-.*",
        "replication.factor": "1",
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "emit.heartbeats.enabled": "false",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{free_port()}",
        "exactly.once.source.support": "enabled",
    }
    for cluster, of in (("a", place), ("b", peer)):
        settings |= {
            f"{cluster}.{kind}.storage.replication.factor": str(of.replicas) for kind in ("config", "offset", "status")
        }
    for way in ("a->b", "b->a"):
        settings |= {f"{way}.enabled": "true", f"{way}.exactly.once.source.support": "enabled"}
    # What lies in `a`: the copies and checkpoints that come from `b`, and the offsets of what goes to `b`.
    for name in ("b->a.replication.factor", "b->a.checkpoints.topic.replication.factor"):
        settings[name] = str(place.replicas)
    settings["a->b.offset-syncs.topic.replication.factor"] = str(place.replicas)
    settings["b->a.offset-syncs.topic.replication.factor"] = "1"
    settings["a->b.checkpoints.topic.replication.factor"] = "1"
    return settings
