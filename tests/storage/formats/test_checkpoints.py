"""Small text files: the bytes that Kafka writes, what it reads, and what is refused with file and line."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.storage.formats import checkpoints as checkpoint
from seglog.storage.formats.checkpoints import CleanShutdown, MetaProperties, read_leader_epochs, write_leader_epochs
from seglog.storage.formats.properties import decode_properties, encode_properties
from tests.cases import case
from tests.kit.crash_fs import CrashFs, SimulatedCrash
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs

ID = UUID("f3a1b2c3-d4e5-4f60-8171-8293a4b5c6d7")
TEXT_ID = "86Gyw9TlT2CBcYKTpLXG1w"
FS = OsFs()


# Ids


@given(st.uuids(version=None))
def test_ids_are_22_characters_and_read_back(value: UUID) -> None:
    case()
    text = checkpoint.encode_id(value)
    assert len(text) == 22
    assert checkpoint.decode_id(text) == checkpoint.decode_id(text + "==") == value


@pytest.mark.parametrize("text", ["", "A" * 21, "A" * 23, "A" * 22 + "=", "A" * 21 + "+", "A" * 21 + "\n", "ä" * 22])
def test_malformed_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an id: 22 of the characters"):
        checkpoint.decode_id(text)


# Offsets


def test_offsets_as_kafka_writes_them(tmp_path: Path) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    offsets = {TopicPartition("web", 0): 12, TopicPartition("__consumer_offsets", 49): 2**63 - 1}
    checkpoint.write_offsets(FS, path, offsets)
    assert Path(path).read_bytes() == b"0\n2\nweb 0 12\n__consumer_offsets 49 9223372036854775807\n"
    assert checkpoint.read_offsets(FS, path) == offsets
    assert os.listdir(tmp_path) == ["recovery-point-offset-checkpoint"]


def test_no_file_and_an_empty_file_have_no_offsets(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    assert checkpoint.read_offsets(FS, str(path)) == {}
    path.write_bytes(b"")  # as Kafka creates it
    assert checkpoint.read_offsets(FS, str(path)) == {}


def test_a_checkpoint_is_the_old_one_or_the_new_one_after_a_crash() -> None:
    """And the new one once it was written: the name is on the disk too."""
    path, old, new = "/recovery-point-offset-checkpoint", {TopicPartition("t", 0): 1}, {TopicPartition("t", 0): 2}
    for crash_at in range(1, 6):
        for seed in range(10):
            case()
            disk = MemoryFs(clock=ManualClock())
            checkpoint.write_offsets(disk, path, old)
            fs = CrashFs(disk, crash_at=crash_at, torn=0.5)
            with suppress(SimulatedCrash):
                checkpoint.write_offsets(fs, path, new)
            found = checkpoint.read_offsets(disk.after_crash(random.Random(seed)), path)
            assert found == new or (fs.crashed and found == old)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("web 0", "line 4: 'web 0' is not a topic, partition and offset"),
        ("web x 1", "line 4: 'x' is not a number from 0 to 2147483647"),
        ("web 2147483648 1", "line 4: '2147483648' is not a number from 0 to 2147483647"),
        ("web 0 -1", "line 4: '-1' is not a number from 0 to 9223372036854775807"),
    ],
)
def test_malformed_offsets(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_text(f"0\n2\nweb 1 5\n{line}\n")
    with pytest.raises(CorruptCheckpointError) as caught:
        checkpoint.read_offsets(FS, str(path))
    assert str(caught.value) == f"{path}: {reason}"


def test_leader_epochs_of_a_partition(tmp_path: Path) -> None:
    partition = str(tmp_path)
    assert read_leader_epochs(FS, partition) == []
    write_leader_epochs(FS, partition, [(0, 0), (3, 120)])
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n3 120\n"
    assert read_leader_epochs(FS, partition) == [(0, 0), (3, 120)]


# partition.metadata


def test_partition_metadata_has_no_newline_at_its_end(tmp_path: Path) -> None:
    assert checkpoint.read_partition_metadata(FS, str(tmp_path)) is None
    checkpoint.write_partition_metadata(FS, str(tmp_path), ID)
    assert (tmp_path / "partition.metadata").read_bytes() == f"version: 0\ntopic_id: {TEXT_ID}".encode()
    assert checkpoint.read_partition_metadata(FS, str(tmp_path)) == ID
    assert checkpoint.decode_partition_metadata(f"version: 1\r\ntopic_id:  {TEXT_ID}\n\n".encode()) == ID


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: '' is not 'version: …'"),
        ("version 0\n", "line 1: 'version 0' is not 'version: …'"),
        ("version: -1\n", "line 1: '-1' is not a number"),
        ("version: 0", "line 2: '' is not 'topic_id: …'"),
        ("version: 0\ntopic_id:", "line 2: 'topic_id:' is not 'topic_id: …'"),
        ("version: 0\ntopic_id: abc", "line 2: 'abc' is not an id"),
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "line 2: the topic id is zero"),
    ],
)
def test_malformed_partition_metadata(text: str, reason: str) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        checkpoint.decode_partition_metadata(text.encode(), "partition.metadata")
    assert caught.value.reason.startswith(reason)
    assert caught.value.file == "partition.metadata"


# meta.properties


def test_meta_properties(tmp_path: Path) -> None:
    log_dir = str(tmp_path)
    assert checkpoint.read_meta_properties(FS, log_dir) is None
    properties = MetaProperties(cluster_id="a:b=c", node_id=3, directory_id=ID)
    checkpoint.write_meta_properties(FS, log_dir, properties, 1_700_000_000_000)
    assert (tmp_path / "meta.properties").read_text() == (
        f"#\n#Tue Nov 14 22:13:20 UTC 2023\ncluster.id=a\\:b\\=c\ndirectory.id={TEXT_ID}\nnode.id=3\nversion=1\n"
    )
    assert checkpoint.read_meta_properties(FS, log_dir) == properties


def test_meta_properties_as_kafka_writes_them() -> None:
    text = (
        "#\n#Sat Nov 21 18:11:35 UTC 2026\n"
        f"node.id=1\ndirectory.id={TEXT_ID}\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
    )
    assert checkpoint.decode_meta_properties(text.encode()) == MetaProperties(1, "MkU3OEVBNTcwNTJENDM2Qk", 1, ID)
    assert checkpoint.decode_meta_properties(b"broker.id=0\nother=1\n") == MetaProperties(0, None, 0)
    assert checkpoint.decode_meta_properties(b"version = 0\ncluster.id: x") == MetaProperties(0, "x")
    assert checkpoint.encode_meta_properties(MetaProperties(0, None, 7), 0).endswith(b"\nbroker.id=7\nversion=0\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version=2", "line 1: '2' is not 0 or 1"),
        ("\nversion=1\n\nnode.id=x", "line 4: 'x' is not an id"),
        ("version=1\nnode.id=99999999999", "line 2: '99999999999' is not an id"),
        ("version=1\nnode.id=1", "cluster.id is missing"),
        ("version=1\ncluster.id=x", "node.id is missing"),
        ("broker.id=1\ndirectory.id=abc", "line 2: 'abc' is not an id"),
        ("broker.id=\\u12x4", "line 1: malformed escape '\\\\u12x4'"),
        ("broker.id=\\u12", "line 1: malformed escape '\\\\u12'"),
    ],
)
def test_malformed_meta_properties(text: str, reason: str) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        checkpoint.decode_meta_properties(text.encode(), "meta.properties")
    assert caught.value.reason == reason
    assert caught.value.file == "meta.properties"


def test_properties_by_javas_rules() -> None:
    text = (
        b"# comment = no\n ! nor = this\n\n"
        b"a=1\n b : 2\nc 3\nd\t=\t4 \n"
        b"e\\=\\:\\ f = g\\\n   h\\\\\n"
        b"uni=\\u00e4\\ud83d\\ude00\\t\\q\nlatin=\xe4\n"
        b"empty\n=nokey\nlast=one\\"
    )
    assert {key: tuple(value) for key, value in decode_properties(text).items()} == {
        "a": ("1", 4),
        "b": ("2", 5),
        "c": ("3", 6),
        "d": ("4 ", 7),
        "e=: f": ("gh\\", 8),
        "uni": ("ä\U0001f600\tq", 10),
        "latin": ("ä", 11),
        "empty": ("", 12),
        "": ("nokey", 13),
        "last": ("one", 14),
    }


KEYS = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.dictionaries(KEYS, KEYS, max_size=4))
def test_properties_read_back(values: dict[str, str]) -> None:
    case()
    data = encode_properties(values, 0)
    assert data.isascii()
    assert {key: found.value for key, found in decode_properties(data).items()} == values


@given(st.binary(max_size=60) | st.text("ab\\=: \n#u0", max_size=30).map(str.encode))
def test_any_bytes_are_properties_or_refused(data: bytes) -> None:
    case()
    for decode in (checkpoint.decode_meta_properties, checkpoint.decode_partition_metadata, checkpoint.decode_offsets):
        with suppress(CorruptCheckpointError):
            decode(data, "f")


# .kafka_cleanshutdown


def test_the_marker_of_a_clean_shutdown(tmp_path: Path) -> None:
    log_dir = str(tmp_path)
    assert checkpoint.read_clean_shutdown(FS, log_dir) is None
    checkpoint.write_clean_shutdown(FS, log_dir, 41)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":41}'
    assert checkpoint.read_clean_shutdown(FS, log_dir) == CleanShutdown(41)
    checkpoint.remove_clean_shutdown(FS, log_dir)
    checkpoint.remove_clean_shutdown(FS, log_dir)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "data", [b"", b"x", b"[]", b"{}", b'{"brokerEpoch":null}', b'{"brokerEpoch":true}', b"[" * 99999]
)
def test_any_marker_is_clean(data: bytes) -> None:
    assert checkpoint.decode_clean_shutdown(data) == CleanShutdown(None)
