"""Topics of a `LogDir`: made, listed, configured, deleted, and what a crash may leave of that."""

from __future__ import annotations

import json

import pytest

from seglog.core.errors import (
    DamagedPartitionError,
    InvalidConfigError,
    InvalidLogDirError,
    InvalidTopicError,
    LogClosedError,
    TopicExistsError,
    UnknownTopicError,
)
from seglog.core.types import TopicPartition
from seglog.storage.formats.checkpoints import read_offsets, read_partition_metadata
from tests.storage.directories import DIR, TINY, Disk
from tests.storage.disk import fill

# Topics


def test_topics_are_created_listed_configured_and_come_back(disk: Disk) -> None:
    with disk.open({"log.segment.bytes": 2_000_000}) as opened:
        made = opened.create_topic("web.clicks", 3, {"retention.ms": "86400000", "cleanup.policy": "compact,delete"})
        assert (made.name, made.partitions) == ("web.clicks", 3)
        assert made.config == {"retention.ms": "86400000", "cleanup.policy": "compact,delete"}
        assert made.topic_id is not None
        assert opened.partitions() == [TopicPartition("web.clicks", number) for number in range(3)]
        for number in range(3):
            assert read_partition_metadata(disk.fs, f"{DIR}/web.clicks-{number}") == made.topic_id
        config = opened.log("web.clicks", 1).config
        assert (config.retention_ms, config.segment_bytes, config.compact) == (86_400_000, 2_000_000, True)
        opened.alter_config("web.clicks", {"retention.ms": None, "segment.ms": 5_000})
        assert opened.log("web.clicks", 2).config.segment_ms == 5_000
        assert opened.log("web.clicks", 2).config.retention_ms == 7 * 86_400_000
    with disk.open() as opened:
        again = opened.topics()
        assert again == {"web.clicks": made._replace(config={"segment.ms": "5000", "cleanup.policy": "compact,delete"})}
        assert opened.log("web.clicks").config.segment_ms == 5_000
    assert disk.names().count("seglog.topics") == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "web\n", "../web"])
def test_bad_names_are_refused(disk: Disk, name: str) -> None:
    with disk.open() as opened, pytest.raises(InvalidTopicError):
        opened.create_topic(name)
    assert disk.fs.listdir("/") == ["logs"]


def test_names_that_collide_and_bad_configurations_are_refused(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web.clicks_1")
        with pytest.raises(TopicExistsError):
            opened.create_topic("web.clicks_1")
        with pytest.raises(InvalidTopicError, match="differs from"):
            opened.create_topic("web_clicks.1")
        for partitions in (0, -1, 100_001):
            with pytest.raises(ValueError, match="1 to 100000 partitions"):
                opened.create_topic("t", partitions)
        with pytest.raises(InvalidConfigError, match=r"retention\.sm"):
            opened.create_topic("t", config={"retention.sm": 1})
        with pytest.raises(InvalidConfigError, match=r"segment\.bytes=5"):
            opened.alter_config("web.clicks_1", {"segment.bytes": 5})
        with pytest.raises(InvalidConfigError, match=r"retention\.sm"):
            opened.alter_config("web.clicks_1", {"retention.sm": None})
        assert list(opened.topics()) == ["web.clicks_1"]
        for act in (opened.delete_topic, opened.log, lambda name: opened.alter_config(name, {})):
            with pytest.raises(UnknownTopicError, match="no"):
                act("none")
        with pytest.raises(UnknownTopicError, match=r"web\.clicks_1-1"):
            opened.log("web.clicks_1", 1)


def test_the_longest_name_can_be_deleted(disk: Disk) -> None:
    longest = "x" * 249
    with disk.open() as opened:
        opened.create_topic(longest)
        opened.delete_topic(longest)
        aside = [name for name in disk.names() if name.endswith("-delete")]
        assert len(aside) == 1
        assert len(aside[0]) == 255
    disk.open().close()


def test_a_deleted_topic_goes_after_a_delay_and_can_be_created_anew(disk: Disk) -> None:
    with disk.open() as opened:
        first = opened.create_topic("web", 2, TINY)
        opened.create_topic("other")
        log = opened.log("web")
        fill(log, 50)
        opened.flush()
        fetched = log.read(0)
        opened.delete_topic("web")
        with pytest.raises(UnknownTopicError):
            opened.log("web")
        with pytest.raises(LogClosedError):
            fill(log, 1)
        assert len(fetched.read()) > 0, "who reads may finish"
        second = opened.create_topic("web", 2)
        assert second.topic_id != first.topic_id
        assert opened.log("web").log_end_offset == 0
        assert TopicPartition("web", 0) not in read_offsets(disk.fs, f"{DIR}/recovery-point-offset-checkpoint")
        assert len([name for name in disk.names() if name.endswith("-delete")]) == 2
        disk.clock.advance(60_001)
        opened.housekeeping()
        assert not [name for name in disk.names() if name.endswith("-delete")]
        assert sorted(opened.topics()) == ["other", "web"]


def test_what_waits_to_be_removed_is_removed_after_a_restart(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 1, TINY)
        fill(opened.log("web"), 50)
        opened.delete_topic("web")
    with disk.open() as opened:
        assert opened.topics() == {}
        opened.housekeeping()
        assert [name for name in disk.names() if name.endswith("-delete")]
        disk.clock.advance(60_001)
        opened.housekeeping()
        assert not [name for name in disk.names() if name.endswith("-delete")]


def test_a_creation_and_a_deletion_that_were_cut_short_are_completed(disk: Disk) -> None:
    with disk.open() as opened:
        made = opened.create_topic("web", 3)
    path = f"{DIR}/seglog.topics"
    content = json.loads(disk.fs.read(path))
    disk.fs.write(
        path, json.dumps(content | {"topics": content["topics"] | {"new": content["topics"]["web"]}}).encode()
    )
    for name in ("web-1", "web-2"):
        for file in disk.fs.listdir(f"{DIR}/{name}"):
            disk.fs.unlink(f"{DIR}/{name}/{file}")
    disk.fs.rmdir(f"{DIR}/web-2")
    with disk.open() as opened:
        assert {name: info.partitions for name, info in opened.topics().items()} == {"web": 3, "new": 3}
        for number in range(3):
            assert read_partition_metadata(disk.fs, f"{DIR}/web-{number}") == made.topic_id
        fill(opened.log("web", 0), 5)
    content["topics"]["web"]["deleted"] = True
    disk.fs.write(path, json.dumps(content).encode())
    with disk.open() as opened:
        assert {name: info.partitions for name, info in opened.topics().items()} == {"new": 3}
        assert "web" not in json.loads(disk.fs.read(path))["topics"]
        assert len([name for name in disk.names() if name.endswith("-delete")]) == 3


def test_a_partition_whose_directory_is_gone_is_not_made_anew(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 2, TINY)
        fill(opened.log("web", 1), 5)
    for file in disk.fs.listdir(f"{DIR}/web-1"):
        disk.fs.unlink(f"{DIR}/web-1/{file}")
    disk.fs.rmdir(f"{DIR}/web-1")
    for _ in range(2):
        with disk.open() as opened:
            with pytest.raises(DamagedPartitionError, match="web-1 is missing"):
                opened.log("web", 1)
            assert opened.log("web", 0).log_end_offset == 0
            assert opened.topics()["web"].partitions == 2
    with disk.open() as opened:
        opened.delete_topic("web")
        opened.create_topic("web", 2)
        assert not opened.refused


def test_files_of_another_topic_of_that_name_are_refused(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 2)
        opened.create_topic("other")
    disk.fs.write(f"{DIR}/web-1/partition.metadata", disk.fs.read(f"{DIR}/other-0/partition.metadata"))
    with disk.open() as opened:
        with pytest.raises(InvalidLogDirError, match=r"web-1/partition\.metadata: topic id"):
            opened.log("web", 1)
        assert opened.partitions() == [TopicPartition("other", 0), TopicPartition("web", 0)]
