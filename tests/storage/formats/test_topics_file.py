"""``seglog.topics`` of an open directory, compared with a file that is written as a whole."""

from __future__ import annotations

import json
from random import Random
from uuid import UUID

import pytest

from seglog.storage.formats import topics_file
from seglog.storage.formats.topics_file import TopicEntry, TopicsFile, encode_topics, read_topics
from tests.cases import case
from tests.kit.memory_fs import MemoryFs

DIR = "/logs"


def entry(rng: Random) -> TopicEntry:
    config = {"retention.ms": str(rng.randrange(9)), "cleanup.policy": "compact"} if rng.random() < 0.5 else {}
    topic_id = UUID(int=rng.randrange(1 << 100), version=4) if rng.random() < 0.9 else None
    return TopicEntry(topic_id, rng.randrange(3), config, rng.random() < 0.1)


def test_a_changed_file_is_as_one_that_is_written_whole() -> None:
    for seed in range(50):
        case()
        rng, fs = Random(seed), MemoryFs()
        fs.mkdir(DIR)
        topics = {name: entry(rng) for name in "abc" if rng.random() < 0.5}
        file = TopicsFile(fs, DIR, topics)
        for _ in range(8):
            changes = {name: entry(rng) if rng.random() < 0.7 else None for name in "abcd" if rng.random() < 0.5}
            file.change(changes)
            topics = {name: one for name, one in {**topics, **changes}.items() if one is not None}
            data = fs.read(f"{DIR}/seglog.topics")
            assert data == encode_topics(topics)
            assert read_topics(fs, DIR) == topics
            assert data == json.dumps(json.loads(data), indent=1).encode() + b"\n"


def test_a_change_encodes_what_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFs()
    fs.mkdir(DIR)
    file = TopicsFile(fs, DIR, {f"t{number}": entry(Random(number)) for number in range(100)})
    encoded: list[str] = []
    real = topics_file.encode_entry

    def encode_entry(name: str, one: TopicEntry) -> str:
        encoded.append(name)
        return real(name, one)

    monkeypatch.setattr(topics_file, "encode_entry", encode_entry)
    file.change({"t7": entry(Random(1)), "new": entry(Random(2)), "t9": None})
    assert encoded == ["t7", "new"]
