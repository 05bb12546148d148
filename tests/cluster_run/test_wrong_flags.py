"""A log directory of a cluster, and a broker that is started on it with the wrong flags: nothing of it changes."""

from __future__ import annotations

import shutil
from pathlib import Path

from seglog.testing import Broker
from tests.broker.python_clients import NewTopic
from tests.cli.run import seglog_command
from tests.kit.cluster import SeglogCluster
from tests.kit.topics import create_topics, values, write

SETTINGS = {"broker.session.timeout.ms": "1500", "min.insync.replicas": "1"}


def content(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_directory_of_a_cluster_is_not_served_without_it(memory: Path) -> None:
    with SeglogCluster(memory / "cluster", count=1, settings=SETTINGS) as cluster:
        create_topics(cluster.bootstrap, NewTopic("t", 1, 1))
        assert write(cluster.bootstrap, "t", "kept") is None
        cluster[1].stop()
        path, other = cluster[1].path, memory / "other"
        with SeglogCluster(other, count=1, settings=SETTINGS) as another:
            another[1].stop()
            before = content(path)
            belongs = f"{path} belongs to node 1 of cluster {cluster.look().cluster_id}"
            for flags, reason in (
                ((), "--cluster STORE --node-id 1"),
                (("--cluster", another.store, "--node-id", "1"), f"{another.store} is the store of cluster"),
                (("--cluster", cluster.store, "--node-id", "2"), "not to node 2: start it with --node-id 1"),
            ):
                refused = seglog_command("serve", "-d", path, "--listen", "127.0.0.1:0", *flags)
                assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, b"", 1)
                assert belongs in refused.err
                assert reason in refused.err
                assert content(path) == before, flags
        for tool in (("ls",), ("verify",)):
            assert seglog_command(*tool, path).code == 0
        for copy in ("for-tests", "alone"):
            shutil.copytree(path, memory / copy)
        with Broker(data_dir=memory / "for-tests") as copied:
            assert values(copied.bootstrap, "t") == ["kept"]
        left = seglog_command("cluster", "leave", memory / "alone")
        assert left.code == 0, left.err
        cluster[1].start()
        cluster.wait_healthy()
        assert values(cluster.bootstrap, "t") == ["kept"]
