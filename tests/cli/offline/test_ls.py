"""`seglog ls` on directories of a real Kafka, of ours, and on damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.core.topic_names import INTERNAL_TOPICS
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from tests import golden
from tests.cli.logs import write_log
from tests.cli.run import Run, printed_on, start_seglog
from tests.kafka.jars import CURRENT, OLD, KafkaVersion
from tests.spark import odd_times


@pytest.fixture(scope="module", params=[CURRENT, OLD])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    version: KafkaVersion = request.param
    return golden.unpack(tmp_path_factory.mktemp("golden"), version)


def test_lists_the_partitions_of_a_kafka_directory(root: Path, run: Run) -> None:
    ran = run("ls", "--json", golden.log_dir(root))
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.text)
    assert [Path(partition["path"]).name for partition in document["partitions"]] == golden.directories(root)
    for partition in document["partitions"]:
        name = f"{partition['topic']}-{partition['partition']}"
        directory = golden.log_dir(root) / name
        logs = sorted(directory.glob("*.log"))
        assert [segment["baseOffset"] for segment in partition["segments"]] == [int(log.stem) for log in logs]
        assert [segment["size"] for segment in partition["segments"]] == [log.stat().st_size for log in logs]
        assert partition["size"] == sum(log.stat().st_size for log in logs)
        bases = [segment["baseOffset"] for segment in partition["segments"]]
        ends = [segment["nextOffset"] for segment in partition["segments"]]
        assert all(end <= base for end, base in zip(ends, bases[1:], strict=False)), name
        assert partition["trailing"] == 0
        if name in golden.partitions(root) and (records := golden.expected_records(root, name)):
            assert partition["nextOffset"] > records[-1].offset
            assert partition["maxTimestamp"] >= max(record.timestamp for record in records)
    assert document["size"] == sum(path.stat().st_size for path in golden.log_dir(root).glob("*/*.log"))


def test_codecs_formats_and_topic_ids(root: Path, run: Run) -> None:
    partitions = {
        Path(partition["path"]).name: partition
        for partition in json.loads(run("ls", "--json", golden.log_dir(root)).text)["partitions"]
    }
    if "codec-zstd-0" in partitions:
        assert partitions["codec-zstd-0"]["codecs"] == ["zstd"]
        assert partitions["codec-none-0"]["formats"] == [2]
        metadata = (golden.log_dir(root) / "codec-zstd-0" / "partition.metadata").read_text(encoding="utf-8")
        assert metadata.endswith(partitions["codec-zstd-0"]["topicId"])
    else:
        assert partitions["mixed-0"]["formats"] == [0, 1, 2]
        assert partitions["v0-gzip-0"]["records"] is None
        assert partitions["v1-none-0"]["records"] == 67


def test_the_table_is_plain_aligned_and_ends_with_totals(root: Path, run: Run) -> None:
    ran = run("ls", golden.log_dir(root))
    header, *rows, totals = ran.lines
    assert header.split() == [
        "PARTITION",
        "SEGMENT",
        "NEXT",
        "RECORDS",
        "BATCHES",
        "SIZE",
        "FIRST",
        "LAST",
        "FORMAT",
        "CODECS",
    ]
    assert len(rows) == len(list(golden.log_dir(root).glob("*/*.log")))
    assert "\x1b" not in ran.text
    assert f"{len(golden.directories(root))} partitions, {len(rows)} segments" in totals
    _, *partitions, _ = short = run("ls", "-p", golden.log_dir(root)).lines
    assert len(partitions) == len(golden.directories(root))
    assert max(map(len, short)) <= 80
    is_internal = [line.startswith(tuple(INTERNAL_TOPICS)) for line in partitions]
    assert is_internal == sorted(is_internal)


@pytest.mark.parametrize("arguments", [(), ("-p",)])
@pytest.mark.parametrize("time", [1_790_000_000_000_000, 2**63 - 1])
def test_a_timestamp_that_is_not_milliseconds_is_shown_whole(
    run: Run, tmp_path: Path, time: int, arguments: tuple[str, ...]
) -> None:
    ran = run("ls", odd_times.write_log(tmp_path, time), *arguments)
    assert ran.code == 0
    assert str(time) in ran.lines[1].split()


def test_one_partition_by_any_path(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    partition = golden.log_dir(root) / golden.partitions(root)[0]
    expected = run("ls", partition).text
    assert partition.name in expected
    link = tmp_path / "link"
    link.symlink_to(partition)
    assert run("ls", link).text == expected
    monkeypatch.chdir(partition)
    assert run("ls").text == expected


def test_lists_an_empty_directory(run: Run, tmp_path: Path) -> None:
    ran = run("ls", tmp_path)
    assert (ran.code, ran.lines) == (0, ["0 topics, 0 partitions, 0 segments, 0 B"])


def test_lists_directories_set_aside_separately(run: Run, tmp_path: Path) -> None:
    gone = f"t-0.{'0' * 32}-delete"
    (tmp_path / "t-1").mkdir()
    (tmp_path / gone).mkdir()
    document = json.loads(run("ls", "--json", tmp_path).text)
    assert [partition["topic"] for partition in document["partitions"]] == ["t"]
    assert document["setAside"] == [gone]


def test_a_torn_tail_is_damage_only_in_sealed_segments(run: Run, tmp_path: Path) -> None:
    partition = tmp_path / "t-0"
    partition.mkdir()
    batch = bytes(encode_batch([NewRecord(b"v", timestamp=5)]))
    last = write_log(partition, [batch, batch[:-1]], base_offset=7)
    ran = run("ls", "--json", partition)
    assert ran.code == 0
    assert json.loads(ran.text)["partitions"][0]["trailing"] == len(batch) - 1
    first = write_log(partition, [batch, batch[:-1]], base_offset=0)
    ran = run("ls", partition)
    assert ran.code == 1
    assert (
        ran.err == f"seglog: {first}, position {len(batch)}: {len(batch) - 1} bytes at the end are not a whole batch\n"
    )
    last.write_bytes(batch + bytes(99) + b"x")  # zeros alone are room for more
    assert "position 69, offset 0: size 0 is under the smallest possible, 14" in run("ls", partition).err


def test_excludes_internal_topics_on_request(run: Run, tmp_path: Path) -> None:
    for name in ("t-0", "__consumer_offsets-0", "__consumer_offsets-1"):
        (tmp_path / name).mkdir()
        write_log(tmp_path / name, [encode_batch([NewRecord(b"v", timestamp=5)])])
    assert len(json.loads(run("ls", "--json", tmp_path).text)["partitions"]) == 3
    document = json.loads(run("ls", "--json", "--exclude-internal", tmp_path).text)
    assert [one["topic"] for one in document["partitions"]] == ["t"]


def test_draws_the_table_with_rich_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    write_log(tmp_path / "t-0", [encode_batch([NewRecord(b"v", timestamp=5)])])
    terminal, shown = os.openpty()
    with start_seglog("ls", tmp_path, stdout=shown) as process:
        assert process.wait(timeout=60) == 0
    os.close(shown)
    text = printed_on(terminal).decode()
    assert "\x1b[1m" in text, "a bold header"
    assert "t-0" in text


@pytest.mark.parametrize("columns", [80, 200])
def test_long_cells_wrap_and_numbers_do_not(columns: int) -> None:
    terminal, shown = os.openpty()
    program = (
        "from seglog.cli.output import Out, show_table; out = Out(); "
        f"show_table(out, {COLUMNS}, [{ROW}, {ROW}], right=('partition', 'offset')); out.flush()"
    )
    environment = {**os.environ, "PYTHONPATH": "src", "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=shown, env=environment) as process:
        assert process.wait(60) == 0
    os.close(shown)
    lines = [line.rstrip() for line in printed_on(terminal).decode().splitlines()]
    assert max(map(len, lines[1:])) <= columns
    assert len(lines) == (3 if columns == 200 else 1 + 2 * 2)
    assert "123456789" in lines[1]


COLUMNS = ("topic", "partition", "offset", "member", "host")
ROW = ("a-topic-of-a-shop", 7, 123456789, "rdkafka-4c5e1b7e-9b1e-4b6f-8a3e-1c2d3e4f5a6b", "/127.0.0.1")


def test_a_narrow_terminal_does_not_cut_cells(tmp_path: Path) -> None:
    (tmp_path / "flights-0").mkdir()
    write_log(tmp_path / "flights-0", [encode_batch([NewRecord(b"v", timestamp=1357034400000)])])
    terminal, shown = os.openpty()
    with start_seglog("ls", tmp_path, stdout=shown, columns=40) as process:
        assert process.wait(timeout=60) == 0
    os.close(shown)
    lines = printed_on(terminal).decode().splitlines()
    assert lines[0].startswith("flights-0  SEGMENT 0")
    assert "  FIRST 2013-01-01T10:00:00Z" in lines
    assert max(map(len, lines)) <= 40


def test_preallocated_space_is_not_damage(tmp_path: Path, run: Run) -> None:
    with LogDir.open(tmp_path / "logs") as opened:
        opened.create_topic("t", 1, {"preallocate": True, "segment.bytes": 1 << 20})
        opened.log("t").append(encode_batch([NewRecord(b"v", timestamp=1)]))
        opened.flush()
        size = opened.log("t").size
        ran = run("ls", "--json", str(tmp_path / "logs"))
        assert (ran.code, ran.err) == (0, "")
        assert json.loads(ran.text)["partitions"][0]["size"] == size
