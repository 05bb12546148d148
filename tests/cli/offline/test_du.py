"""`seglog du` against the files and records themselves: directories of real Kafkas, and made logs."""

from __future__ import annotations

import json
import struct
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.cli.offline.du_page import squarify
from seglog.records.record import NewRecord, Record, encode_batch
from seglog.storage.offline.space.keys import KeySpace
from tests import golden
from tests.cases import case
from tests.cli.run import Run
from tests.kafka.jars import CURRENT, OLD, KafkaVersion
from tests.storage.offline.written_segments import numbered, write_segment


@pytest.fixture(scope="module", params=[CURRENT, OLD])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    version: KafkaVersion = request.param
    return golden.unpack(tmp_path_factory.mktemp("golden"), version)


def _measured(run: Run, *arguments: str | Path) -> dict[str, Any]:
    ran = run("du", *arguments, "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.text)
    return found


def test_every_view_adds_up_to_the_files_of_real_kafkas(root: Path, run: Run) -> None:
    directory = golden.log_dir(root)
    found = _measured(run, directory)
    assert {f"{one['topic']}-{one['partition']}" for one in found["partitions"]} == set(golden.directories(root))
    for one in found["partitions"]:
        logs = sum(path.stat().st_size for path in Path(one["path"]).glob("*.log"))
        assert one["bytes"] + one["trailing"] == logs
        for view in ("byCodec", "byProducer", "byAge"):
            assert sum(one[view].values()) == one["bytes"]
        name = f"{one['topic']}-{one['partition']}"
        has_all = name in golden.partitions(root) and "txn" not in name and not name.startswith(("__", "deleted"))
        if has_all and one["records"] is not None:
            assert one["records"] == len(golden.expected_records(root, name))
    assert found["total"]["bytes"] == sum(one["bytes"] for one in found["topics"])
    assert found["total"]["size"] == sum(one["size"] for one in found["partitions"])


def test_keys_are_counted_as_the_consumer_reads_them(tmp_path: Path, run: Run) -> None:
    root = golden.unpack(tmp_path, CURRENT)
    records = golden.expected_records(root, "codec-zstd-0")
    keys = _measured(run, golden.log_dir(root) / "codec-zstd-0", "--keys", "--top", "1000")["keys"]
    counted = Counter(record.key for record in records if record.key is not None)
    shown = {one["key"]: one["records"] for one in keys["largest"] if isinstance(one["key"], str)}
    assert shown == {key.decode(): number for key, number in counted.items() if _is_text(key)}
    assert keys["isExact"]
    assert keys["distinct"] == len(counted)
    assert keys["keyless"]["records"] == sum(record.key is None for record in records)
    sizes = [one["bytes"] for one in keys["largest"]]
    assert sizes == sorted(sizes, reverse=True)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_savings_by_compaction_and_duplicates_are_exact_for_few_keys(tmp_path: Path, run: Run) -> None:
    batch = encode_batch(
        [
            NewRecord(b"x" * 9, b"a", 5),
            NewRecord(b"y" * 9, b"b", 5),
            NewRecord(b"x" * 9, b"a", 5),
            NewRecord(b"z", None, 5),
        ]
    )
    write_segment(tmp_path / "web-0", 0, [batch])
    keys = _measured(run, tmp_path, "--keys")["keys"]
    assert keys["compactionSaves"] == {"share": 10 / 30, "error": 0.0, "isExact": True}
    assert keys["duplicateValues"] == {"share": 9 / 28, "error": 0.0, "isExact": True}
    text = run("du", tmp_path, "--keys").text
    assert "2 keys, counted exactly" in text
    assert "compaction would drop 33.3% of the 30 B with keys" in text


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_a_sketch_keeps_its_promises(seed: int) -> None:
    """The counts of the largest keys are off by what is said at the most, and the estimates are near."""
    case()
    random = Random(seed)
    space = KeySpace(most_keys=64)
    counts: Counter[bytes] = Counter()
    last: dict[bytes, int] = {}
    total = 0
    for offset in range(1500):
        key = b"%d" % int(random.paretovariate(0.6)) if random.random() < 0.7 else b"r%d" % random.randrange(400)
        value = bytes(random.randrange(1, 40))
        space.add(Record(offset, 0, key, value, ()), b"p")
        size = len(key) + len(value)
        counts[key] += 1
        last[key] = size
        total += size
    assert not space.is_exact
    for one in space.most_frequent(5):
        assert one.key is not None
        assert counts[one.key] - space.lost_records <= one.records <= counts[one.key]
    (heaviest, number), *_ = counts.most_common(1)
    if number > space.lost_records * 2:
        assert space.most_frequent(1)[0].key == heaviest
    share = space.compaction
    assert not share.is_exact
    assert 0 <= share.share <= 1
    assert space.distinct is None


def test_other_codecs_are_estimated_with_their_error(tmp_path: Path, run: Run) -> None:
    few, many = tmp_path / "few-0", tmp_path / "many-0"
    write_segment(few, 0, numbered(0, 30))
    write_segment(many, 0, numbered(0, 600))
    exact = {one["codec"]: one for one in _measured(run, few, "--codecs")["codecs"]}
    size = sum(path.stat().st_size for path in few.glob("*.log"))
    assert exact["none"] == {"codec": "none", "bytes": size, "error": 0, "sampledBatches": 10, "batches": 10}
    assert set(exact) == {"none", "gzip", "snappy", "lz4", "zstd"}
    sampled = {one["codec"]: one for one in _measured(run, many, "--codecs")["codecs"]}
    assert (sampled["zstd"]["sampledBatches"], sampled["zstd"]["batches"]) == (64, 200)
    assert "by a sample of 64 of 200 batches" in run("du", many, "--codecs").text


def test_headers_only_are_read_of_large_batches(tmp_path: Path, run: Run) -> None:
    """A sparse log of 8 GiB in batches of 1 MiB: the bytes between the headers are holes, and no CRC is right."""
    partition = tmp_path / "big-0"
    partition.mkdir()
    batch = bytearray(encode_batch([NewRecord(b"v" * 10, timestamp=5)]))
    struct.pack_into(">i", batch, 8, (1 << 20) - 12)
    for segment in range(8):
        with (partition / f"{segment * 1024:020d}.log").open("wb") as file:
            for number in range(1024):
                struct.pack_into(">q", batch, 0, segment * 1024 + number)
                file.seek(number << 20)
                file.write(batch[:61])
            file.truncate(1 << 30)
    total = _measured(run, tmp_path)["total"]
    assert (total["bytes"], total["batches"], total["overhead"]) == (8 << 30, 8192, 8192 * 61)


def test_deleted_files_and_directories_are_counted_beside_the_batches(tmp_path: Path, run: Run) -> None:
    write_segment(tmp_path / "web-0", 0, numbered(0, 30))
    (tmp_path / "web-0" / f"{0:020d}.log.deleted").write_bytes(b"x" * 8192)
    aside = tmp_path / "old-0.0123456789abcdef0123456789abcdef-delete"
    write_segment(aside, 0, numbered(0, 30))
    found = _measured(run, tmp_path)
    assert found["total"]["other"]["files .deleted"] >= 8192
    assert list(found["setAside"]) == [str(aside)]
    assert "set aside: " in run("du", tmp_path).text


def test_damage_ends_a_segment_and_not_the_command(tmp_path: Path, run: Run) -> None:
    path = write_segment(tmp_path / "web-0", 0, numbered(0, 30))
    write_segment(tmp_path / "web-1", 0, numbered(0, 30))
    data = bytearray(path.read_bytes())
    position = struct.unpack_from(">i", data, 8)[0] + 12
    data[position + 16] = 9
    path.write_bytes(data)
    ran = run("du", tmp_path, "--by", "partition")
    assert ran.code == 1
    assert ran.err == f"seglog: {path}, position {position}, offset 3: unknown magic 9\n"
    assert "web-1" in ran.text


def test_each_view_and_the_tree_are_printed(tmp_path: Path, run: Run) -> None:
    directory = golden.log_dir(golden.unpack(tmp_path, CURRENT))
    assert run("du", directory, "--by", "codec").lines[0].split() == ["CODEC", "SIZE", "SHARE"]
    assert run("du", directory, "--by", "age").code == 0
    assert "golden-open" in run("du", directory, "--by", "producer").text
    tree = run("du", directory, "--tree", "-t", "txn", "-t", "rolled").lines
    assert tree[0].endswith(str(directory))
    assert any("├─ rolled (" in line for line in tree)
    assert any("   └─ txn-0 (2 segments)" in line for line in tree)


class _Page(HTMLParser):
    """Counts the elements of a page, and collects what would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_picture_is_one_file_without_network(tmp_path: Path, run: Run) -> None:
    directory = golden.log_dir(golden.unpack(tmp_path, CURRENT))
    out = tmp_path / "space.html"
    assert run("du", directory, "--keys", "--codecs", "--html", out).code == 0
    page = _Page()
    page.feed(out.read_text())
    assert page.loaded == []
    assert page.tags["script"] == page.tags["link"] == 0
    assert page.tags["rect"] >= len(golden.directories(directory.parent))
    assert "kkkk" in out.read_text()


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40))
def test_a_map_gives_each_size_its_area(sizes: list[int]) -> None:
    case()
    boxes = squarify(sorted(sizes, reverse=True), 0, 0, 1200, 640)
    assert [box.item for box in boxes] == list(range(len(sizes)))
    for box, size in zip(boxes, sorted(sizes, reverse=True), strict=True):
        assert box.width * box.height == pytest.approx(size / sum(sizes) * 1200 * 640, rel=1e-6)
        assert -1e-6 <= box.x <= box.x + box.width <= 1200.001
        assert -1e-6 <= box.y <= box.y + box.height <= 640.001


def test_wrong_arguments_are_one_line(tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, reason in (
        ((tmp_path / "none",), "none is not a directory"),
        (("",), "the path is not a directory"),
        ((tmp_path / "empty",), "no partition is in"),
        ((tmp_path / "empty", "--by", "moon"), "--by must be topic, partition, age, codec or producer, not moon"),
        ((tmp_path / "empty", "-t", "x"), "no partition of the topics is in"),
    ):
        ran = run("du", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, b"", 1)
        assert reason in ran.err
