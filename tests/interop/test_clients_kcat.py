"""kcat against our broker."""

from __future__ import annotations

import json

import pytest

from tests.clients.kcat import kcat
from tests.clients.process import ClientProcess
from tests.clients.servers import Server

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.fixture
def topic(server: Server, topic_name: str) -> str:
    with ClientProcess("confluent", server.bootstrap) as client:
        client.create(topic_name, 2)
        for codec in _CODECS:
            client.create(f"{topic_name}-{codec}", 1)
    return topic_name


def test_produce_consume_and_query(server: Server, topic: str) -> None:
    where = server.bootstrap
    for codec, number in _CODECS.items():
        lines = b"".join(b"key-%d:%s\n" % (one, b"value " * 30) for one in range(20))
        of = ("-t", f"{topic}-{codec}")
        kcat(where, "-P", *of, "-K", ":", "-z", codec, "-H", "a=b", "-X", "enable.idempotence=true", stdin=lines)
        told = kcat(where, "-C", *of, "-e", "-q", "-f", r"%p %o %k %h %S\n").splitlines()
        assert told == [f"0 {one} key-{one} a=b 180" for one in range(20)]
        assert set(server.codecs(f"{topic}-{codec}")) == {number}
    kcat(where, "-P", "-t", topic, "-p", "1", "-Z", "-K", ":", stdin=b"deleted:\n")
    (record,) = map(json.loads, kcat(where, "-C", "-t", topic, "-p", "1", "-e", "-q", "-J").splitlines())
    assert (record["key"], record["payload"], record["offset"]) == ("deleted", None, 0)
    assert kcat(where, "-Q", "-t", f"{topic}:1:{record['ts']}").strip() == f"{topic} [1] offset 0"
    assert kcat(where, "-C", "-t", f"{topic}-none", "-o", "-3", "-e", "-q", "-f", "%o ").split() == ["17", "18", "19"]


def test_metadata_and_a_balanced_consumer(server: Server, topic: str) -> None:
    where = server.bootstrap
    told = json.loads(kcat(where, "-L", "-J", "-t", topic))
    (found,) = told["topics"]
    assert (found["topic"], len(found["partitions"])) == (topic, 2)
    assert [broker["name"] for broker in told["brokers"]] == [where]
    lines = b"".join(b"%d\n" % one for one in range(30))
    kcat(where, "-P", "-t", topic, "-X", "partitioner=random", stdin=lines)
    reset = ("-X", "auto.offset.reset=earliest")
    first = kcat(where, "-G", f"kcat-{topic}", *reset, "-c", "10", "-q", topic).split()
    rest = kcat(where, "-G", f"kcat-{topic}", *reset, "-e", "-q", topic).split()
    # It commits what it has read: the second one goes on from there.
    assert sorted(map(int, first + rest)) == list(range(30))
