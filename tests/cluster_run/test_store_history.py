"""A metadata store that is put back from an older copy, or is gone: nothing is deleted, and no broker takes the older
one for the newest. The drill of docs/replication.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.broker.python_clients import NewTopic
from tests.cli.run import Ran, seglog_command
from tests.kit.cluster import SeglogCluster
from tests.kit.topics import admin_client, commit, committed, create_topics, values, write
from tests.kit.waiting import wait_until

SETTINGS = {
    "broker.session.timeout.ms": "1500",
    "min.insync.replicas": "1",
    "log.segment.delete.delay.ms": "0",
    "offsets.topic.replication.factor": "2",
    "offsets.topic.num.partitions": "1",
}


def command(*arguments: str | Path) -> Ran:
    ran = seglog_command("cluster", *arguments)
    assert ran.code == 0, ran.err
    return ran


def logs(cluster: SeglogCluster) -> dict[str, bytes]:
    """The records of all replicas, whatever the names of their directories are now."""
    return {
        f"{node}/{path.parent.name.partition('.')[0]}/{path.name}": path.read_bytes()
        for node, broker in cluster.brokers.items()
        for path in sorted(broker.path.glob("*/*.log"))
    }


def is_led(cluster: SeglogCluster, topic: str) -> bool:
    return cluster.leader(topic, 0) is not None


def has(cluster: SeglogCluster, topic: str, wanted: list[str]) -> bool:
    try:
        return is_led(cluster, topic) and values(cluster.bootstrap, topic) == wanted
    except KafkaException:  # a broker that has not heard of the leader yet
        return False


def replace_store(cluster: SeglogCluster, store: str) -> None:
    """``store`` is in the place of the cluster's from here on."""
    old = Path(cluster.store.removeprefix("sqlite:"))
    for file in old.parent.glob(f"{old.name}*"):
        file.unlink()
    for file in old.parent.glob(f"{Path(store.removeprefix('sqlite:')).name}*"):
        file.rename(old.parent / file.name.replace(Path(store.removeprefix("sqlite:")).name, old.name))


def test_an_older_store_is_refused_and_when_it_is_accepted_nothing_is_deleted(memory: Path) -> None:
    with SeglogCluster(memory / "cluster", count=2, settings=SETTINGS) as cluster:
        where = cluster.bootstrap
        create_topics(where, NewTopic("old", 1, 2), NewTopic("deleted", 1, 2))
        assert write(where, "old", "1") is None
        commit(where, "drill", "old", 0)
        copy = memory / "backup.json"
        assert "generation" in command("backup", "--store", cluster.store, copy).text
        create_topics(where, NewTopic("new", 1, 2))
        assert write(where, "old", "since") is None
        assert write(where, "new", "2") is None
        commit(where, "drill", "old", 1)
        cluster.stop()
        before = logs(cluster)

        restored = f"sqlite:{memory / 'cluster' / 'restored.sqlite'}"
        command("restore", "--store", restored, copy)
        replace_store(cluster, restored)
        for broker in cluster.brokers.values():
            broker.launch()
            with pytest.raises(RuntimeError, match=r"went back in time: it is at generation \d+, but \S+ has seen \d+"):
                broker.ready()
        assert logs(cluster) == before

        command("accept-store", "--store", cluster.store)
        cluster.start_all([1, 2])
        wait_until(partial(has, cluster, "old", ["1", "since"]), "what was written before and after the backup")
        assert committed(where, "drill", "old") == 1
        directories = [broker.path for broker in cluster.brokers.values()]
        strays = command("strays", "--json", *directories).objects
        assert [(one["topic"], one["logEnd"]) for one in strays] == [("new", 1), ("new", 1)]
        tried = command("strays", "--remove-all", "--dry-run", "--json", *directories).objects
        assert tried == strays, "nothing is removed"
        after = logs(cluster)  # consumers may have written to that of the groups
        assert all(after[log].startswith(content) for log, content in before.items()), "no byte is deleted"
        wait_until(lambda: sum(one.strays for one in cluster.look().brokers.values()) == 2, "strays to be reported")
        for asked in (("--store", cluster.store), ("-b", cluster[1].address)):
            status = seglog_command("cluster", "status", *asked)
            assert (status.code, status.text.count("strays: broker ")) == (1, 2), asked

        rebuilt = f"sqlite:{memory / 'cluster' / 'rebuilt.sqlite'}"
        refused = seglog_command("cluster", "rebuild", "--store", rebuilt, *map(str, directories))
        assert (refused.code, "is in use: stop all brokers first" in refused.err) == (2, True), "brokers run"
        cluster.stop()

        told = command("rebuild", "--store", rebuilt, *directories).text
        assert "new: only strays have it" in told
        replace_store(cluster, rebuilt)
        cluster.start_all([1, 2])
        for topic, written in (("old", ["1", "since"]), ("new", ["2"])):
            wait_until(partial(has, cluster, topic, written), f"what was written to {topic}")
            assert write(where, topic, "more") is None
            assert values(where, topic) == [*written, "more"]
        assert committed(where, "drill", "old") == 1
        assert command("strays", *directories).lines == ["no strays"]
        cluster.wait_healthy()


def test_returning_broker_deletes_replicas_of_deleted_topics(memory: Path) -> None:
    with SeglogCluster(memory / "cluster", count=2, settings=SETTINGS) as cluster:
        create_topics(cluster.bootstrap, NewTopic("t", 1, 2))
        assert write(cluster.bootstrap, "t", "1") is None
        cluster[2].stop()
        admin = admin_client(cluster[1].address)
        admin.delete_topics(["t"])["t"].result(30)
        wait_until(lambda: not list(cluster[1].path.glob("t-0*")), "broker 1 to delete its replica")
        assert list(cluster[2].path.glob("t-0"))
        cluster[2].start()
        wait_until(lambda: not list(cluster[2].path.glob("t-0*")), "broker 2 to delete its replica")
