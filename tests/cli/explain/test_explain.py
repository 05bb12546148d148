"""`seglog explain` on directories of real Kafkas, on made ones, and beside a broker."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from tests import golden
from tests.broker.broker_thread import RunningNode
from tests.cli.run import Run
from tests.kafka.jars import CURRENT, OLD, KafkaVersion
from tests.kit.topics import write
from tests.storage.offline.written_segments import write_segment

DAY = 86_400_000
NOW = 1_700_000_000_000


@pytest.fixture(scope="module", params=[CURRENT, OLD, "4.3.0"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    version: KafkaVersion = request.param
    return golden.unpack(tmp_path_factory.mktemp("golden"), version)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Kafka 4.4's directory."""
    return golden.log_dir(golden.unpack(tmp_path, CURRENT))


def _explained(run: Run, *arguments: str | Path) -> list[dict[str, Any]]:
    ran = run("explain", *arguments, "--json")
    assert ran.code == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.text)["partitions"]
    return found


def _one(run: Run, *arguments: str | Path) -> dict[str, Any]:
    (found,) = _explained(run, *arguments)
    return found


def _texts(document: dict[str, Any], about: str) -> list[str]:
    return [one["text"] for one in document["statements"] if one["about"] == about]


def _log(directory: Path, *ages_ms: int, records: int = 2) -> Path:
    """A segment for each age of its records before `NOW`; the last one is active."""
    partition = directory / "web-0"
    for number, age in enumerate(ages_ms):
        base = number * records
        batch = encode_batch([NewRecord(b"v" * 50, b"k", NOW - age)] * records, base_offset=base)
        path = write_segment(partition, base, [batch])
        os.utime(path, (NOW / 1000, NOW / 1000))
    return partition


def _tree(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def test_every_partition_of_real_kafkas_is_explained_and_nothing_is_changed(root: Path, run: Run) -> None:
    directory = golden.log_dir(root)
    before = _tree(directory)
    found = {f"{one['topic']}-{one['partition']}": one for one in _explained(run, directory, "--at", "+400d")}
    assert set(found) == set(golden.directories(root))
    for name, one in found.items():
        logs = {int(path.name[:20]): path.stat().st_size for path in (directory / name).glob("*.log")}
        assert {segment["baseOffset"]: segment["size"] for segment in one["segments"]} == logs
        assert all(segment["text"] and segment["rule"] for segment in one["segments"])
        assert sum(segment["isActive"] for segment in one["segments"]) == 1
        last = golden.expected_records(root, name)[-1:] if name in golden.partitions(root) else []
        assert all(record.offset < one["logEndOffset"] for record in last)
    text = run("explain", directory, "--at", "+400d").text
    assert all(f"\n{name}: " in f"\n{text}" for name in found)
    assert _tree(directory) == before


def test_configurations_come_from_krafts_metadata_in_the_directory(data: Path, run: Run) -> None:
    config = _one(run, data / "compacted-0")["config"]
    assert config["cleanup.policy"] == {"value": "compact", "origin": "__cluster_metadata-0"}
    assert config["segment.bytes"] == {"value": "2048", "origin": "__cluster_metadata-0"}
    assert config["retention.ms"] == {"value": str(7 * DAY), "origin": "Kafka's default"}
    described = golden.topics(data.parent)
    for one in _explained(run, data):
        if one["topic"] in described:
            for key, value in described[one["topic"]].config.items():
                shown = one["config"].get(key)
                assert shown is None or shown["value"] == value


def test_configurations_of_files_and_options_win(data: Path, run: Run, tmp_path: Path) -> None:
    server = tmp_path / "server.properties"
    server.write_text("node.id=1\nlog.retention.hours=48\nlog.cleaner.enable=false\nlisteners=PLAINTEXT://:9092\n")
    config = _one(run, data / "rolled-0", "--config-file", server)["config"]
    assert config["retention.ms"] == {"value": str(2 * DAY), "origin": str(server)}
    more = _one(run, data / "rolled-0", "--config-file", server, "--config", "retention.ms=1000,cleanup.policy=compact")
    assert more["config"]["retention.ms"] == {"value": "1000", "origin": "--config"}
    assert any("log.cleaner.enable is false" in text for text in _texts(more, "cleaning"))
    tiered = _one(run, data / "rolled-0", "--config", "remote.storage.enable=true")
    assert any("remote.storage.enable is left out" in text for text in _texts(tiered, "config"))


def test_our_own_topics_are_known_by_their_file(tmp_path: Path, run: Run) -> None:
    with LogDir.open(tmp_path / "logs") as opened:
        opened.create_topic("web", 1, {"retention.ms": 5000})
    assert _one(run, tmp_path / "logs")["config"]["retention.ms"] == {"value": "5000", "origin": "seglog.topics"}


def test_wrong_arguments_are_one_line_that_names_them(data: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    wrong = tmp_path / "wrong.properties"
    wrong.write_text("a=b\n")
    for arguments, reason in (
        ((tmp_path / "none",), "none is not a directory; to ask brokers about a topic, add -b HOST:PORT"),
        (("",), "the path is not a directory"),
        ((data, "--at", "soon"), "--at must be milliseconds since 1970"),
        ((data, "--offset", "1", "--time", "5"), "--offset and --time exclude each other"),
        ((data, "--config", "retention.ms=often"), "retention.ms='often' is not allowed"),
        ((data, "--config-file", wrong), f"{wrong} has no key of a topic or broker"),
        ((data, "-t", "nothing"), "no partition of the topics is in"),
        ((data / "rolled-0", "--start"), "rolled-0 is a partition's directory: --start needs the log directory"),
        ((tmp_path / "empty",), "no partition is in"),
    ):
        ran = run("explain", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, b"", 1), ran.err
        assert reason in ran.err
    damaged = data / "replication-offset-checkpoint"
    damaged.write_bytes(b"0\n2\nrolled 0 180\n")
    ran = run("explain", data / "rolled-0")
    assert (ran.code, ran.out) == (1, b"")
    assert str(damaged) in ran.err


# Retention


def test_a_segment_goes_when_its_newest_record_is_too_old(tmp_path: Path, run: Run) -> None:
    partition = _log(tmp_path, 9 * DAY, 3 * DAY, DAY)
    found = _one(run, partition, "--now", str(NOW))
    old, young, active = found["segments"]
    assert (old["rule"], old["isGone"], old["goesMs"]) == ("retention.ms", True, NOW)
    assert "goes at the next check: its newest record is of" in old["text"]
    assert (young["isGone"], young["goesMs"]) == (False, NOW + 4 * DAY + 1)
    assert "(in 4 d)" in young["text"]
    assert "retention.ms is 7 d" in young["text"]
    assert active["isActive"]
    by_then = _one(run, partition, "--now", str(NOW), "--at", "+5d")
    assert [one["isGone"] for one in by_then["segments"]] == [True, True, False]
    assert any("2 segments with" in text and "start at offset 4" in text for text in _texts(by_then, "retention"))
    shown = run("explain", partition, "--now", str(NOW), "--at", "+5d").text
    assert shown.count("gone by ") == 2


def test_a_timestamp_in_the_future_holds_all_that_follows(tmp_path: Path, run: Run) -> None:
    partition = _log(tmp_path, -30 * DAY, 9 * DAY, 9 * DAY)
    future, held, active = _one(run, partition, "--now", str(NOW))["segments"]
    assert future["goesMs"] == held["goesMs"] == active["goesMs"] == NOW + 37 * DAY + 1
    assert "30 d in the future" in future["text"]
    assert held["waitsFor"] == 0
    assert "as segment 0 does: deletion begins at the oldest segment" in held["text"]


def test_timestamps_in_other_units_are_recognized(tmp_path: Path, run: Run) -> None:
    seconds = _log(tmp_path / "a", NOW - NOW // 1000, DAY)
    assert "probably in seconds" in _one(run, seconds, "--now", str(NOW))["segments"][0]["text"]
    microseconds = _log(tmp_path / "b", NOW - NOW * 1000, DAY)
    assert "probably in micro- or nanoseconds" in _one(run, microseconds, "--now", str(NOW))["segments"][0]["text"]


def test_event_times_that_were_too_old_when_they_were_written(tmp_path: Path, run: Run) -> None:
    text = _one(run, _log(tmp_path, 30 * DAY, DAY), "--now", str(NOW))["segments"][0]["text"]
    assert "with event times that were too old already" in text
    assert "LogAppendTime" in text


def test_size_policy_and_the_active_segment_have_their_own_words(tmp_path: Path, run: Run) -> None:
    partition = _log(tmp_path / "a", 3 * DAY, 2 * DAY, DAY)
    by_size = _one(run, partition, "--now", str(NOW), "-c", "retention.bytes=100")["segments"]
    assert [one["rule"] for one in by_size] == ["retention.bytes", "retention.bytes", "retention.ms"]
    kept = _one(run, partition, "--now", str(NOW), "-c", "cleanup.policy=compact")["segments"]
    assert {one["rule"] for one in kept} == {"cleanup.policy"}
    forever = _one(run, partition, "--now", str(NOW), "-c", "retention.ms=-1")["segments"]
    assert all("retention.ms is -1, and retention.bytes is -1" in one["text"] for one in forever)
    alone = _one(run, _log(tmp_path / "b", DAY), "--now", str(NOW))
    assert any("all of the data is in the active segment" in text for text in _texts(alone, "retention"))


def test_what_is_not_replicated_stays(data: Path, run: Run) -> None:
    (data / "replication-offset-checkpoint").write_text("0\n1\nrolled 0 70\n")
    found = _one(run, data / "rolled-0")
    assert found["highWatermark"] == 70
    held = [one for one in found["segments"] if not one["isGone"]]
    assert held[0]["rule"] == "high watermark"
    assert "above the high watermark 70 (replication-offset-checkpoint)" in held[0]["text"]
    assert all(one["rule"] == "order" for one in held[1:])


def test_deleted_records_and_deleted_files_are_named(data: Path, run: Run) -> None:
    found = _one(run, data / "deleted-prefix-0")
    assert found["logStartOffset"] == 65
    shutil.copy(data / "rolled-0" / "00000000000000000000.log", data / "deleted-part-0" / f"{0:020d}.log.deleted")
    part = _one(run, data / "deleted-part-0")
    assert any("DeleteRecords has moved the start" in text for text in _texts(part, "offsets"))
    assert any("files .deleted" in text for text in _texts(part, "retention"))


# Compaction


def test_why_a_partition_is_not_compacted(tmp_path: Path, run: Run) -> None:
    partition = _log(tmp_path, 3 * DAY, 2 * DAY, DAY)
    compact = "cleanup.policy=compact"

    def told(*configs: str) -> str:
        keys = [part for config in (compact, *configs) for part in ("-c", config)]
        return " ".join(_texts(_one(run, partition, "--now", str(NOW), *keys), "cleaning"))

    assert "a ratio of 1.000, and min.cleanable.dirty.ratio is 0.5: it is cleaned next" in told()
    assert "in the active segment, which is never cleaned" in told()
    waiting = told(f"min.compaction.lag.ms={5 * DAY}")
    assert "nothing from offset 0 on is cleaned before" in waiting
    assert "without another append it is cleaned from" in waiting
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nweb 0 2\n")
    assert "a ratio of 0.500" in told()
    assert "more have to be closed first" in told()
    assert "later than max.compaction.lag.ms" in told(f"max.compaction.lag.ms={DAY}")
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nweb 0 99\n")
    assert "which is outside of the log" in told()


def test_tombstones_and_markers_have_a_horizon(data: Path, run: Run) -> None:
    (one,) = [
        statement
        for statement in _one(run, data / "compacted-0")["statements"]
        if statement["rule"] == "delete.retention.ms"
    ]
    assert one["batches"] > 0
    assert one["firstHorizonMs"] <= one["lastHorizonMs"]


# Transactions, lag, look-ups


def test_an_open_transaction_has_a_holder(data: Path, run: Run) -> None:
    (one,) = [
        statement
        for statement in _one(run, data / "txn-open-0", "-c", "cleanup.policy=compact")["statements"]
        if statement["about"] == "transactions"
    ]
    assert (one["transactionalId"], one["state"], one["firstOffset"]) == ("golden-open", "Ongoing", 4)
    (data / "replication-offset-checkpoint").write_text("0\n1\nrolled 0 70\n")
    held = _one(run, data / "rolled-0", "-c", "cleanup.policy=compact")
    assert any("nothing from offset 66 on is cleaned: the last stable" in text for text in _texts(held, "cleaning"))


def test_transactions_in_every_state_are_named_as_kafka_left_them(tmp_path: Path, run: Run) -> None:
    root = golden.unpack_transactions(tmp_path)
    left, _ = golden.left_transactions(root)
    named = {
        (one["topic"], statement["transactionalId"], statement["producerId"], statement["state"])
        for one in _explained(run, golden.log_dir(root))
        for statement in one["statements"]
        if statement["about"] == "transactions" and one["topic"] != "__consumer_offsets"
    }
    assert named
    assert named <= {(one.topic, one.id, one.producer_id, one.state) for one in left}


def test_markers_and_aborted_records_at_the_end_are_no_backlog(data: Path, run: Run) -> None:
    texts = _texts(_one(run, data / "txn-0"), "lag")
    assert len(texts) == 2
    assert "read_uncommitted consumer" in texts[0]
    assert "offset 107: abort marker" in texts[0]
    assert "offsets 103 to 106: records of an aborted transaction" in texts[1]
    assert "not a backlog" in texts[1]
    assert not _texts(_one(run, data / "rolled-0"), "lag")


def test_the_lag_of_a_group_by_its_commits_in_the_directory(data: Path, run: Run) -> None:
    found = [
        statement
        for one in _explained(run, data, "--group", "standalone")
        for statement in one["statements"]
        if statement["about"] == "lag" and statement["committed"] is not None
    ]
    assert [(one["committed"], one["lag"], one["rule"]) for one in found] == [(4, 14, "backlog")]
    assert all(
        statement["committed"] is None
        for one in _explained(run, data, "--group", "to-be-deleted")
        for statement in one["statements"]
        if statement["about"] == "lag"
    )


def test_look_ups_are_explained_to_the_end(data: Path, run: Run) -> None:
    def result(*arguments: str | Path) -> dict[str, Any]:
        statements = _one(run, *arguments)["statements"]
        found: dict[str, Any] = [one for one in statements if one["about"] == "look-up"][-1]
        return found

    assert result(data / "rolled-0", "--offset", "100")["foundOffset"] == 100
    assert result(data / "compacted-0", "--offset", "1")["rule"] == "gap"
    assert result(data / "txn-0", "--offset", "107")["rule"] == "control record"
    assert result(data / "txn-open-0", "--offset", "6")["rule"] == "last stable offset"
    assert result(data / "rolled-0", "--offset", "999")["rule"] == "log end offset"
    assert "DeleteRecords has removed it" in result(data / "deleted-part-0", "--offset", "3")["text"]
    assert result(data / "deleted-prefix-0", "--offset", "3")["rule"] == "log start offset"
    assert result(data / "rolled-0", "--time", "2100-01-01")["rule"] == "not found"
    by_time = result(data / "rolled-0", "--time", "1700000005000")
    assert by_time["foundTimestamp"] >= 1_700_000_005_000


# Starts


def test_a_start_is_foretold_and_nothing_is_written(data: Path, run: Run) -> None:
    before = _tree(data)
    ran = run("explain", data, "--start")
    assert (ran.code, ran.err) == (1 if "refused" in ran.text else 0, "")
    assert "starts with 26 partitions" in ran.text
    assert "closed cleanly" in ran.text
    assert _tree(data) == before


def test_each_reason_for_a_refused_start(data: Path, run: Run, tmp_path: Path) -> None:
    def told(*arguments: str | Path) -> str:
        before = _tree(data)
        ran = run("explain", *arguments, "--start", "--json")
        assert ran.code == 1, ran.text
        assert _tree(data) == before
        return " ".join(one["text"] for one in json.loads(ran.text)["statements"])

    properties = tmp_path / "server.properties"
    properties.write_text("node.id=7\n")
    assert "node.id 1, not 7" in told(data, "--config-file", properties)
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    assert "have the same directory.id" in told(data, copy)
    (data / "lost+found").mkdir()
    assert "lost+found is neither a partition's directory" in told(data)
    (data / "lost+found").rmdir()
    log = data / "rolled-0" / f"{33:020d}.log"
    log.write_bytes(log.read_bytes()[:-7])
    assert "rolled-0 is refused" in told(data)
    (data / "meta.properties").unlink()
    assert "meta.properties is missing" in told(data)


def test_an_unclean_start_says_what_it_cuts(data: Path, run: Run) -> None:
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (data / "recovery-point-offset-checkpoint").write_text("0\n1\nrolled 0 0\n")
    (data / "replication-offset-checkpoint").write_text("0\n0\n")
    log = data / "rolled-0" / f"{168:020d}.log"
    log.write_bytes(log.read_bytes()[:-7])
    before = _tree(data)
    text = run("explain", data, "--start").text
    assert "it was not closed cleanly" in text
    assert "rolled-0 is cut: " in text
    assert _tree(data) == before


def test_a_directory_in_use_is_not_started_a_second_time(tmp_path: Path, run: Run) -> None:
    with LogDir.open(tmp_path / "logs") as opened:
        opened.create_topic("web", 1, {})
        ran = run("explain", tmp_path / "logs", "--start")
        assert ran.code == 1
        assert "a second start is refused" in ran.text
        assert _one(run, tmp_path / "logs")["logEndOffset"] == 0


# Brokers


def test_brokers_tell_what_they_can(wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("topics", "create", topic_name, "-c", "retention.ms=3600000")
    assert write(broker.bootstrap, topic_name, "tea") is None
    assert write(broker.bootstrap, topic_name, "rum") is None
    ran = wire("explain", topic_name, "-b", broker.bootstrap, "--group", "nobody", "--time", "0", "--json")
    assert ran.code == 0, ran.err
    ((partition,), document) = (json.loads(ran.text)["brokers"], json.loads(ran.text))
    assert document["partitions"] == []
    assert partition["partition"] == f"{topic_name}-0"
    by_about = {one["about"]: one for one in partition["statements"]}
    assert (by_about["offsets"]["logStartOffset"], by_about["offsets"]["highWatermark"]) == (0, 2)
    assert "retention.ms=3600000 (1 h) from the brokers" in by_about["config"]["text"]
    assert by_about["look-up"]["foundOffset"] == 0
    on_disk = json.loads(wire("explain", str(broker.path / f"{topic_name}-0"), "-b", broker.bootstrap, "--json").text)
    (one,) = on_disk["partitions"]
    assert one["config"]["retention.ms"] == {"value": "3600000", "origin": "the brokers"}
    assert (one["highWatermark"], one["logEndOffset"]) == (2, 2)
    by_offset = wire("explain", topic_name, "-b", broker.bootstrap, "--offset", "2").text
    assert "offset 2 is not there yet: the high watermark is 2" in by_offset
    missing = wire("explain", "no-such-topic", "-b", broker.bootstrap)
    assert (missing.code, missing.err) == (2, "seglog: topic no-such-topic does not exist\n")
