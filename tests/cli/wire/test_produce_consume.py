"""`seglog produce` and `seglog consume`, compared with kafka-python, which hashes keys and reads records itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from seglog.cli.wire.follow import FollowedFile
from seglog.cli.wire.sender import Sender
from seglog.records.partitioner import partition_for_key
from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import kafka
from tests.cli.run import Run
from tests.kit.broker_process import BrokerProcess


def _read(broker: RunningNode, topic: str) -> list[Any]:
    """All records, by kafka-python."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    try:
        partitions = [kafka.TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[Any] = []
        while any(consumer.position(one) < ends[one] for one in partitions):
            for records in consumer.poll(1000).values():
                found.extend(records)
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_lines_keys_headers_and_tombstones(
    codec: str, run: Run, wire: Run, broker: RunningNode, topic_name: str
) -> None:
    lines = b"k1:v1\nk2:\nk3:a:b\nk1:\xff\xfe\n"
    arguments = ("-K", ":", "-Z", "-H", "from=test", "-z", codec, "--json")
    ran = wire("produce", topic_name, *arguments, stdin=lines)
    assert (ran.code, ran.err) == (0, "")
    assert ran.objects[0]["records"] == 4
    (log,) = (broker.path / f"{topic_name}-0").glob("*.log")
    assert f"compresscodec: {codec} " in run("dump", log).text
    assert [(one.key, one.value, list(one.headers)) for one in _read(broker, topic_name)] == [
        (key, value, [("from", b"test")])
        for key, value in ((b"k1", b"v1"), (b"k2", None), (b"k3", b"a:b"), (b"k1", b"\xff\xfe"))
    ]


def test_snappy(wire: Run, topic_name: str) -> None:
    assert wire("produce", topic_name, "-z", "snappy", stdin=b"x\ny\n").code == 0
    assert wire("consume", topic_name, "-e").text == "x\ny\n"


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32", "round-robin", "sticky", "random"])
def test_partitioners(partitioner: str, wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("topics", "create", topic_name, "-p", "5")
    keys = [b"key-%d" % number for number in range(40)]
    lines = b"".join(b"%s\tv\n" % key for key in keys)
    assert wire("produce", topic_name, "-K", "\\t", "--partitioner", partitioner, stdin=lines).code == 0
    found = {one.key: one.partition for one in _read(broker, topic_name)}
    expected: dict[str, Any] = {
        "murmur2": {key: partition_for_key(key, 5) for key in keys},
        "crc32": {key: zlib.crc32(key) % 5 for key in keys},
        "round-robin": {key: number % 5 for number, key in enumerate(keys)},
        "sticky": dict.fromkeys(keys, found[keys[0]]),
    }
    if partitioner == "random":
        assert len(set(found.values())) > 1
    else:
        assert found == expected[partitioner]


def test_sends_to_one_partition_and_refuses_unknown_ones(wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("topics", "create", topic_name, "-p", "3")
    assert wire("produce", topic_name, "-p", "2", stdin=b"a\nb").code == 0
    assert [(one.partition, one.value) for one in _read(broker, topic_name)] == [(2, b"a"), (2, b"b")]
    ran = wire("produce", topic_name, "-p", "3", stdin=b"a\n")
    assert (ran.code, ran.err) == (2, f"seglog: topic {topic_name} has no partition 3, only 0 to 2\n")


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(acks: str, wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("topics", "create", topic_name)
    assert wire("produce", topic_name, "--acks", acks, "--retries", "3", stdin=b"x\ny\n").code == 0
    assert wire("consume", topic_name, "-c", "2").text == "x\ny\n"  # with acks=0 they are sent, and not there yet
    assert [one.value for one in _read(broker, topic_name)] == [b"x", b"y"]


def test_formats_and_null(wire: Run, broker: RunningNode, topic_name: str) -> None:
    lines = b"6b31:aGVsbG8=\n6b32:NULL\n"
    formats = ("--key-format", "hex", "--value-format", "base64", "--null", "NULL", "-K", ":")
    assert wire("produce", topic_name, *formats, stdin=lines).code == 0
    assert wire("produce", topic_name, "--parse-headers", stdin=b'a:b,c:\t{"x": [1]}\n').code == 0
    got = [(one.key, one.value, list(one.headers)) for one in _read(broker, topic_name)]
    assert got == [(b"k1", b"hello", []), (b"k2", None, []), (None, b'{"x": [1]}', [("a", b"b"), ("c", b"")])]
    shown = wire("consume", topic_name, "-e", *formats)
    assert shown.out.splitlines()[:2] == lines.splitlines()
    last = wire("consume", topic_name, "-e", "-o", "2", "--json", "--value-format", "json")
    assert (last.objects[0]["value"], last.objects[0]["headers"]) == ({"x": [1]}, [["a", "b"], ["c", ""]])
    wrong = wire("consume", topic_name, "-e", "--json", "--value-format", "json")
    assert wrong.err == f"seglog: topic {topic_name}, partition 0, offset 0: 'hello' is not json\n"


@pytest.mark.parametrize(
    ("arguments", "line", "reason"),
    [
        (("-K", ":"), b"no key", "line 1: the line has no key separator ':'"),
        (("--value-format", "hex"), b"zz", "line 1: 'zz' is not hex"),
        (("--value-format", "json"), b"{", "line 1: '{' is not json"),
        (("--value-format", "xml"), b"", "--value-format must be text, json, hex or base64, not xml"),
        (("--records",), b"[]", "line 1: the line is not a JSON object"),
        (("--records",), b'{"value": 5}', 'line 1: value is neither a text nor {"base64": "…"} nor null'),
        (("--records",), b'{"key": {"base64": "?"}}', "line 1: key: '?' is not base64"),
        (("--acks", "2"), b"", "--acks must be all, 1 or 0, not 2"),
        (("--acks", "1", "--idempotent"), b"", "--idempotent needs --acks all, not 1"),
        (("-z", "brotli"), b"", "--codec must be none, gzip, snappy, lz4 or zstd, not brotli"),
        (
            ("--partitioner", "best"),
            b"",
            "--partitioner must be murmur2, crc32, fnv1a, sticky, round-robin or random, not best",
        ),
        (("--follow",), b"", "--follow, --from-end and --position-file need --from-file"),
        (("--from-file", "/no/such"), b"", "/no/such: No such file or directory"),
    ],
)
def test_invalid_options_and_lines_are_reported(
    arguments: tuple[str, ...], line: bytes, reason: str, wire: Run, topic_name: str
) -> None:
    ran = wire("produce", topic_name, *arguments, stdin=line + b"\n")
    assert (ran.code, ran.text, ran.err) == (2, "", f"seglog: {reason}\n")


def test_reports_a_record_that_the_broker_refuses(wire: Run, topic_name: str) -> None:
    wire("topics", "create", topic_name, "-c", "max.message.bytes=1000")
    ran = wire("produce", topic_name, stdin=b"x" * 5000 + b"\n")
    assert (ran.code, ran.err) == (2, f"seglog: topic {topic_name}, partition 0: Message size too large\n")


def test_start_and_end_of_a_consumer(wire: Run, topic_name: str) -> None:
    lines = b"".join(b'{"value":"%d","timestamp":%d}\n' % (number, 1000 * number + 1) for number in range(10))
    wire("produce", topic_name, "--records", stdin=lines)
    for arguments, expected in (
        (("-e",), range(10)),
        (("-e", "--from-beginning", "-c", "3"), range(3)),
        (("-o", "4", "-c", "2"), range(4, 6)),
        (("-e", "-o", "-3"), range(7, 10)),
        (("-e", "-o", "@5500"), range(6, 10)),
        (("-e", "-o", "s@1970-01-01T00:00:09Z"), range(9, 10)),
        (("-e", "-o", "end"), range(0)),
        (("--timeout-ms", "2500", "-p", "0"), range(10)),
    ):
        ran = wire("consume", topic_name, *arguments)
        assert (ran.code, ran.err, ran.text.split()) == (0, "", [str(number) for number in expected]), arguments
    for wrong in (("-o", "11"), ("-o", "soon"), ("-p", "1"), ("-f", "%q"), ("-f", "\\q"), ("-g", "g", "-p", "0")):
        ran = wire("consume", topic_name, *wrong)
        assert (ran.code, ran.text, ran.err.count("\n")) == (2, "", 1), wrong
    assert wire("consume", "no-such").err == "seglog: topic no-such does not exist\n"


def test_the_format_string(wire: Run, topic_name: str) -> None:
    wire(
        "produce",
        topic_name,
        "--records",
        stdin=b'{"key":{"base64":"aw=="},"value":null,"headers":[["h","x"]],"timestamp":7}\n',
    )
    ran = wire("consume", topic_name, "-e", "-f", r"%t %p %o %T %k %K %s %S %h %%\x21\n")
    assert ran.text == f"{topic_name} 0 0 7 k 1  -1 h=x %!\n"


def test_consume_json_matches_dump_and_is_accepted_by_produce(
    wire: Run, run: Run, broker: RunningNode, topic_name: str
) -> None:
    wire("topics", "create", topic_name, "-p", "2")
    wire("produce", topic_name, "-K", ":", "-H", "é=\\", "--no-idempotent", stdin=b"a:1\nb:\xff\nc:\n")
    consumed = sorted(
        wire("consume", topic_name, "-e", "--json").objects, key=lambda one: (one["partition"], one["offset"])
    )
    paths = [str(broker.path / f"{topic_name}-{number}") for number in range(2)]
    dumped = run("dump", "--records", "--json", *paths).objects
    assert [list(one) for one in consumed] == [list(one) for one in dumped]
    unknown = ("isTransactional", "producerId", "producerEpoch", "sequence")
    assert consumed == [{**one, **dict.fromkeys(unknown)} for one in dumped]

    copy = f"{topic_name}-copy"
    wire("topics", "create", copy, "-p", "2")
    lines = "".join(json.dumps(one) + "\n" for one in consumed).encode()
    assert wire("produce", copy, "--records", "--keep-partitions", stdin=lines).code == 0
    original, copied = _read(broker, topic_name), _read(broker, copy)
    assert [(one.partition, one.offset, one.timestamp, one.key, one.value, one.headers) for one in copied] == [
        (one.partition, one.offset, one.timestamp, one.key, one.value, one.headers) for one in original
    ]


def test_follows_a_file_through_rotation_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    followed = FollowedFile(str(path))
    assert list(followed.lines()) == []
    path.write_bytes(b"a\nb")
    assert [line.data for line in followed.lines()] == [b"a"]
    with path.open("ab") as file:
        file.write(b"c\nd")
    assert [line.data for line in followed.lines()] == [b"bc"]
    path.rename(tmp_path / "access.log.1")
    with (tmp_path / "access.log.1").open("ab") as file:
        file.write(b"e\nf")
    assert [line.data for line in followed.lines()] == [b"de"]
    path.write_bytes(b"g\n")
    assert [line.data for line in followed.lines()] == [b"f", b"g"]
    os.truncate(path, 0)
    assert list(followed.lines()) == []
    path.write_bytes(b"h\n")
    *_, last = followed.lines()
    assert last.data == b"h"
    again = FollowedFile(str(path), at=last.end)
    path.write_bytes(b"h\ni\n")
    assert [line.data for line in again.lines()] == [b"i"]
    assert list(FollowedFile(str(path), from_end=True).lines()) == []


def test_following_resumes_at_the_saved_position(
    broker: RunningNode, topic_name: str, tmp_path: Path, wire: Run
) -> None:
    path, positions = tmp_path / "access.log", tmp_path / "positions"
    path.write_bytes(b"1\n2\n")
    wire("topics", "create", topic_name)
    command = [
        *(sys.executable, "-m", "seglog", "produce", topic_name, "-b", broker.bootstrap),
        *("--from-file", str(path), "--follow", "--position-file", str(positions)),
    ]

    def follow_two_from(offset: int) -> None:
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": "src"}) as process:
            assert wire("consume", topic_name, "-c", "2", "-o", str(offset)).code == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0

    follow_two_from(0)
    path.rename(tmp_path / "access.log.1")
    path.write_bytes(b"3\n")
    with path.open("ab") as file:
        file.write(b"4\n")
    end = len(_read(broker, topic_name))
    follow_two_from(end)
    assert [one.value for one in _read(broker, topic_name)] == [b"1", b"2", b"3", b"4"]


def test_an_interrupt_in_a_callback_raises_keyboard_interrupt(
    topic_name: str, wire: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal during a callback of librdkafka, whose binding raises a SystemError for it."""
    wire("topics", "create", topic_name)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sender, "_delivered", interrupted)
    assert wire("produce", topic_name, "--json", stdin=b"x\n").code == 130


def test_ctrl_c_ends_a_consumer_silently(broker: RunningNode, topic_name: str, wire: Run) -> None:
    wire("produce", topic_name, stdin=b"x\n")
    command = [sys.executable, "-m", "seglog", "consume", topic_name, "-b", broker.bootstrap]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": "src"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(60), process.stderr.read()) == (130, b"")


def test_a_lost_broker_ends_a_consumer_that_does_not_follow(tmp_path: Path, topic_name: str, run: Run) -> None:
    (tmp_path / "lines").write_bytes(b"x\n")
    environment = {**os.environ, "PYTHONPATH": "src"}
    seglog = [sys.executable, "-m", "seglog"]
    with BrokerProcess(tmp_path / "log") as broker:
        assert run("produce", topic_name, "-b", broker.bootstrap, "--from-file", tmp_path / "lines").code == 0
        # Without an end that is seen, it waits as for a partition that is not read to its end.
        consume = [*seglog, "consume", topic_name, "-b", broker.bootstrap, "-e", "--timeout", "5"]
        with subprocess.Popen(
            [*consume, "-X", "enable.partition.eof=false"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"x\n"
            broker.kill()
            assert process.wait(60) == 2
            assert process.stderr.read().startswith(b"seglog: consume: nothing was received for ")
