"""Records that other people's clients produce, with every codec and acks, are read back by them and by another
client."""

from __future__ import annotations

import pytest

from tests.clients.choosing import names
from tests.clients.process import ClientProcess, Told, encoded, told
from tests.clients.servers import Server
from tests.clients.versions import CLIENTS

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_T0 = 1_700_000_000_000
_RECORDS = [
    (b"key", b"value", _T0, ()),
    (None, b"no key" * 200, _T0 + 1, (("header", b"content"), ("header", b"again"))),
    (b"deleted", None, _T0 + 2, ()),
    (b"", b"", _T0 - 5, (("\u00e9\u4e2d", "\u00e9".encode()), ("empty", b""))),
    *((b"%d" % number, b"%d " % number * 50, _T0 + number, ()) for number in range(10, 40)),
]


@pytest.mark.parametrize("name", names(*(name for name in CLIENTS if name not in ("kafka-python-2.0", "java-4.3.0"))))
def test_what_is_produced_is_read_again(server: Server, name: str, topic_name: str) -> None:
    with ClientProcess(name, server.bootstrap) as client, ClientProcess("confluent", server.bootstrap) as other:
        for number, codec in enumerate(client.kind.codecs):
            topic = f"{topic_name}-{codec}"
            other.create(topic, 2)
            # Each acks with some codec, all of them with some client.
            acks = (-1, 1, 0)[(number + len(name)) % 3]
            records = [encoded(place % 2, *record) for place, record in enumerate(_RECORDS)]
            said = client.run("produce", topic=topic, records=records, codec=codec, acks=acks)
            sent = [["acked", place] for place in range(len(_RECORDS))]
            assert [what[:2] for what in sorted(said)] == sent, (codec, acks, client.complaints)
            if acks:
                assert all(what[2:] == [what[1] % 2, what[1] // 2] for what in said)
            wanted = [
                Told(place % 2, place // 2, at, key, value, headers)
                for place, (key, value, at, headers) in enumerate(_RECORDS)
            ]
            for reader in (client, other):
                found = reader.run("consume", topic=topic, starts={0: 0, 1: "earliest"}, count=len(_RECORDS))
                assert sorted(told(found), key=_place) == sorted(wanted, key=_place)
            # A client may leave a small batch that would not become smaller.
            assert {_CODECS[codec]} <= set(server.codecs(topic)) <= {_CODECS[codec], 0}


def _place(record: Told) -> tuple[int, int]:
    return record.partition, record.offset
