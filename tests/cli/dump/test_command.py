"""`seglog dump` on files made by hand: cases that no golden directory has, and the exit code of each finding."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest

from seglog.cli.dump import log_text
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.offline import batch_reading
from tests.cli.logs import write_index, write_log, write_time_index
from tests.cli.made_logs import legacy_message, some_log
from tests.cli.run import Run

_EMPTY_NAME = "00000000000000000000"


def _batch(*values: bytes | None, offset: int = 0, codec: int = 0, timestamp: int = 7) -> bytes:
    records = [NewRecord(value, timestamp=timestamp) for value in values]
    return bytes(encode_batch(records, base_offset=offset, codec=codec))


def test_lines_of_a_small_log(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records = [NewRecord(b"v", b"k", 7, (("a", b"1"), ("é", None))), NewRecord(None, None, 9)]
    marker = end_txn_marker(
        commit=False, coordinator_epoch=4, producer_id=5, producer_epoch=1, timestamp=11, base_offset=7, leader_epoch=0
    )
    batch = encode_batch(records, base_offset=5, producer_id=5, producer_epoch=1, base_sequence=2**31 - 1)
    write_log(Path(), [batch, marker], base_offset=5)
    lines = run("dump", "--print-data-log", ".//00000000000000000005.log").lines
    assert lines[:2] == ["Dumping ./00000000000000000005.log", "Log starting offset: 5"]
    assert lines[2].startswith(
        "baseOffset: 5 lastOffset: 6 count: 2 baseSequence: 2147483647 lastSequence: 0 producerId: 5 producerEpoch: 1 "
        "partitionLeaderEpoch: -1 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        f"position: 0 CreateTime: 9 size: {len(batch)} magic: 2 compresscodec: none crc: "
    )
    assert lines[3] == (
        "| offset: 5 CreateTime: 7 keySize: 1 valueSize: 1 sequence: 2147483647 headerKeys: [a,é] key: k payload: v"
    )
    assert lines[4] == "| offset: 6 CreateTime: 9 keySize: -1 valueSize: -1 sequence: 0 headerKeys: []"
    assert lines[6] == (
        "| offset: 7 CreateTime: 11 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: ABORT "
        "coordinatorEpoch: 4"
    )


def test_skip_record_metadata_prints_a_bar_before_the_contents(run: Run, tmp_path: Path) -> None:
    records = [NewRecord(b"v", b"k"), NewRecord(b"v"), NewRecord(None, b"k"), NewRecord(None)]
    log = write_log(tmp_path, [encode_batch(records)])
    lines = run("dump", "--print-data-log", "--skip-record-metadata", log).text.split("\n")
    assert lines[3:] == ["| key: k payload: v", "| payload: v", "| key: k", "", ""]


@pytest.mark.parametrize(("name", "size"), [("IntegerDecoder", 4), ("LongDecoder", 8)])
def test_number_decoders_read_the_first_bytes_of_a_longer_value(name: str, size: int, run: Run, tmp_path: Path) -> None:
    number = (-2).to_bytes(size, signed=True)
    log = write_log(tmp_path, [_batch(number, number + b"\x01", number + number)])
    for decoder in (name, f"org.apache.kafka.tools.api.{name}"):
        lines = run("dump", "--print-data-log", "--skip-record-metadata", "--value-decoder-class", decoder, log).lines
        assert lines[3:] == ["| payload: -2"] * 3


def test_max_bytes_excludes_the_batch_that_exceeds_it(run: Run, tmp_path: Path) -> None:
    batch = _batch(b"x" * 100)
    log = write_log(tmp_path, [batch, batch])
    for limit, batches in ((len(batch) - 1, 0), (len(batch), 1), (2 * len(batch) - 1, 1), (2 * len(batch), 2)):
        ran = run("dump", "--max-bytes", str(limit), log)
        assert (ran.code, len(ran.lines)) == (0, 2 + batches)


def test_counts_the_bytes_of_a_torn_tail(run: Run, tmp_path: Path) -> None:
    batch = _batch(b"x")
    log = write_log(tmp_path, [batch, batch[:40]])
    ran = run("dump", log)
    assert ran.code == 1
    assert ran.lines[-1] == f"Found 40 invalid bytes at the end of {log.name}"


def test_a_directory_without_logs_fails(run: Run, tmp_path: Path) -> None:
    for arguments in ([tmp_path], ["--records", "--json", tmp_path]):
        ran = run("dump", *arguments)
        assert (ran.code, ran.out) == (2, b"")
        assert "is neither a log directory nor a partition's" in ran.err
    (tmp_path / "meta.properties").touch()
    assert run("dump", tmp_path).code == 0


def test_prints_a_wrong_crc_and_exits_with_1(run: Run, tmp_path: Path) -> None:
    batch = bytearray(_batch(b"abc"))
    batch[-2] ^= 1
    ran = run("dump", "--print-data-log", write_log(tmp_path, [batch, _batch(b"def", offset=1)]))
    assert ran.code == 1
    assert [line.rpartition(" ")[2] for line in ran.lines if "isvalid" in line] == ["false", "true"]
    assert ran.lines[-1].endswith("payload: def")


def test_unreadable_records_end_the_dump_where_kafka_stops(run: Run, tmp_path: Path) -> None:
    first = bytearray(_batch(b"abc", b"def"))
    first[60] = 3  # claims one record more than there is
    log = write_log(tmp_path, [first, _batch(b"never reached", offset=2)])
    ran = run("dump", "--print-data-log", log)
    assert ran.code == 1
    assert ran.text.endswith(
        "payload: abc\n| offset: 1 CreateTime: 7 keySize: -1 valueSize: 3 sequence: -1 headerKeys: [] payload: def\n"
    )
    assert ran.err.startswith(f"seglog: {log}, position 0, offset ")


def test_an_unknown_codec_ends_the_dump_in_the_middle_of_a_line(run: Run, tmp_path: Path) -> None:
    batch = bytearray(_batch(b"abc"))
    batch[22] |= 7
    ran = run("dump", write_log(tmp_path, [batch]))
    assert (ran.code, ran.text[-40:]) == (1, "false deleteHorizonMs: OptionalLong.empty"[-40:])
    assert "unknown compression type 7" in ran.err


def test_reports_offset_gaps_without_counting_damage(run: Run, tmp_path: Path) -> None:
    log = write_log(tmp_path, [_batch(b"a", offset=3), _batch(b"b", offset=9)])
    ran = run("dump", "--deep-iteration", log)
    assert ran.code == 0
    assert ran.err == f"Non-consecutive offsets in {log}\n  3 is followed by 9\n"


def test_chunks_of_a_few_batches_give_the_same_text(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gaps within and between chunks."""
    random = Random(2)
    log = write_log(tmp_path, [batch for _ in range(40) for batch in some_log(random)])
    assert log.stat().st_size > 10_000
    for options in ((), ("--deep-iteration",), ("--print-data-log",), ("--print-data-log", "--skip-record-metadata")):
        whole = run("dump", *options, log)
        with monkeypatch.context() as patch:
            patch.setattr(log_text, "read_chunks", partial(batch_reading.read_chunks, size=1000))
            assert run("dump", *options, log) == whole
        assert not options or "is followed by" in whole.err


def test_harmless_index_mismatches_are_not_damage(run: Run, tmp_path: Path) -> None:
    """Up to Kafka 3.9 an entry stands for a whole append: its last offset, at the position of its first batch."""
    batches = [_batch(b"a", b"b", offset=2 * i) for i in range(4)]
    write_log(tmp_path, batches)
    size = len(batches[0])
    index = write_index(tmp_path, [(5, size)], room=1000)
    ran = run("dump", index)
    assert ran.code == 0
    assert ran.lines[1:] == [f"offset: 5 position: {size}"]
    assert ran.err == f"Mismatches in :{index}\n  Index offset: 5, log offset: 3\n"
    assert run("dump", "--verify-index-only", index).lines == [f"Dumping {index}"]
    write_index(tmp_path, [(3, 2 * size)])
    assert run("dump", index).code == 1, "an entry that points behind its offset"
    write_index(tmp_path, [(3, size + 1)])
    ran = run("dump", index)
    assert (ran.code, ran.lines) == (1, [f"Dumping {index}"])
    assert "entry 0 has offset 3 at position" in ran.err


def test_an_empty_index_and_the_sanity_check(run: Run, tmp_path: Path) -> None:
    write_log(tmp_path, [_batch(b"a")])
    index = write_index(tmp_path, [])
    assert run("dump", index).lines[1:] == [f"{index} is empty."]
    write_index(tmp_path, [(1, 0)], room=10)
    assert run("dump", "--index-sanity-check", index).lines[1:] == [f"{index} passed sanity check."]
    index.write_bytes(index.read_bytes() + b"x")
    ran = run("dump", "--index-sanity-check", index)
    assert ran.code == 1
    assert "bytes are not a multiple of 8" in ran.err


def test_time_index_entries(run: Run, tmp_path: Path) -> None:
    write_log(tmp_path, [_batch(b"a", b"b", offset=2 * i, timestamp=100 + i) for i in range(4)])
    write_index(tmp_path, [])
    times = write_time_index(tmp_path, [(100, 1), (102, 5)], room=5)
    ran = run("dump", times)
    assert (ran.code, ran.err, ran.lines[1:]) == (0, "", ["timestamp: 100 offset: 1", "timestamp: 102 offset: 5"])
    write_time_index(tmp_path, [(100, 1), (102, 4)])
    ran = run("dump", times)
    assert ran.code == 0, "older Kafkas name the record that has the timestamp, not the last of its batch"
    assert ran.err.splitlines()[1:] == ["Indexed offset: 4, found log offset: 5"]
    write_time_index(tmp_path, [(103, 5)])
    ran = run("dump", times)
    assert ran.code == 1
    assert ran.err.splitlines()[1:] == ["  Index timestamp: 103, log timestamp: 102"]


def test_an_index_without_its_log_is_an_io_error(run: Run, tmp_path: Path) -> None:
    ran = run("dump", write_index(tmp_path, [(1, 0)]))
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert not (tmp_path / f"{_EMPTY_NAME}.log").exists()


def test_ignores_unknown_files_and_names_them(run: Run, tmp_path: Path) -> None:
    for name in ("leader-epoch-checkpoint", f"{_EMPTY_NAME}.log.deleted", "x.txt"):
        (tmp_path / name).write_bytes(b"0\n0\n")
        ran = run("dump", tmp_path / name)
        assert (ran.code, ran.err) == (0, f"Ignoring unknown file {tmp_path / name}\n")


def test_refuses_a_log_without_base_offset_in_its_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.log").write_bytes(b"")
    ran = run("dump", tmp_path / "mine.log")
    assert ran.code == 2
    assert "named by its base offset" in ran.err


def test_follows_a_symbolic_link(run: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    log = write_log(tmp_path / "elsewhere", [_batch(b"a")])
    link = tmp_path / log.name
    link.symlink_to(log)
    assert run("dump", link).lines[1:] == run("dump", log).lines[1:]


def test_a_partition_is_dumped_segment_by_segment(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    for base in (0, 1):
        write_log(directory, [_batch(b"a", offset=base)], base_offset=base)
        write_index(directory, [], base_offset=base)
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n0\n")
    expected = [f"Dumping {directory}/{base:020d}{kind}" for base in (0, 1) for kind in (".log", ".index")]
    for path in (directory, tmp_path):
        assert [line for line in run("dump", path).lines if line.startswith("Dumping")] == expected


def test_records_skips_and_reports_damaged_batches(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "web.logs-3"
    directory.mkdir()
    bad = bytearray(_batch(b"b", offset=1))
    bad[-2] ^= 1
    log = write_log(directory, [_batch(b"a"), bad, _batch(b"c", offset=2)[:-1]])
    ran = run("dump", "--records", "--json", log)
    assert ran.code == 1
    assert [(record["topic"], record["partition"], record["value"]) for record in ran.objects] == [("web.logs", 3, "a")]
    position = len(_batch(b"a"))
    first, second = ran.err.splitlines()
    assert first.startswith(f"seglog: {log}, position {position}, offset 1: stored CRC ")
    assert second == f"seglog: {log}, position {2 * position}: {position - 1} bytes at the end are not a whole batch"


def test_json_of_records_distinguishes_null_from_empty(run: Run, tmp_path: Path) -> None:
    records = [NewRecord(b"", None, 5, (("h", b""), ("é", None))), NewRecord(None, b"", 5)]
    old = legacy_message(0, 2, None, b"old")
    ran = run("dump", "--records", write_log(tmp_path, [encode_batch(records, leader_epoch=3), old]))
    first, second, third = ran.objects
    assert (first["topic"], first["partition"]) == (None, None), "the directory is not named like a partition"
    assert (first["key"], first["value"], first["headers"]) == (None, "", [["h", ""], ["é", None]])
    assert (second["key"], second["value"], second["leaderEpoch"]) == ("", None, 3)
    assert (third["timestampType"], third["timestamp"], third["leaderEpoch"]) == (-1, -1, -1)


def test_json_of_damage(run: Run, tmp_path: Path) -> None:
    bad = bytearray(_batch(b"b"))
    bad[-2] ^= 1
    ran = run("dump", "--json", write_log(tmp_path, [bad]))
    assert (ran.code, ran.objects[0]["isValid"]) == (1, False)
    (tmp_path / f"{_EMPTY_NAME}.snapshot").write_bytes(b"\0\1broken")
    ran = run("dump", "--json", tmp_path / f"{_EMPTY_NAME}.snapshot")
    assert (ran.code, ran.text) == (1, "")
    assert f"{_EMPTY_NAME}.snapshot" in ran.err
