"""Makes the golden directories with real Kafka: `python -m tests.golden.make [4.4.0] [2.8.2] [transactions]` from the
root.

Takes about a minute. Records are the same on every run; cluster and topic ids, LogAppendTime, markers' timestamps, and
where the cleaner's rounds fell are not, so a new set is a new commit of both archives and never a test's business.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.golden import ARCHIVES, TRANSACTIONS, archive_name
from tests.golden import scenes as do
from tests.golden.recipes import CURRENT_TOPICS, OLD_TOPICS, Topic
from tests.kafka import CURRENT, OLD, KafkaNode, ZkKafkaNode
from tests.kafka.tools import Isolation, consume_text, delete_records, dump_many, produce
from tests.kit import transaction_states as states
from tests.kit.ports import free_port

_TAR_SECONDS = 1_700_000_000
_DECODERS: Mapping[str, str] = {
    "__consumer_offsets-0": "--offsets-decoder",
    "__transaction_state-0": "--transaction-log-decoder",
    "__cluster_metadata-0": "--cluster-metadata-decoder",
}
_DUMPED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_FAST_HOUSEKEEPING = {
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
}


def main(versions: Sequence[str]) -> None:
    for version in versions or (CURRENT, OLD, "transactions"):
        with tempfile.TemporaryDirectory() as scratch:
            name = TRANSACTIONS if version == "transactions" else archive_name(CURRENT if version == CURRENT else OLD)
            root = Path(scratch) / name
            (root / "expected").mkdir(parents=True)
            if version == CURRENT:
                _make_current(Path(scratch) / "node", root)
            elif version == "transactions":
                _make_transactions(Path(scratch) / "node", root)
            else:
                _make_old(Path(scratch) / "node", root)
            size = _pack(root, ARCHIVES / f"{root.name}.tar.xz")
            print(f"{root.name}: {size} bytes")


def _make_current(scratch: Path, root: Path) -> None:
    cleaned = [f"{topic.name}-0" for topic in CURRENT_TOPICS if topic.cleaned]
    node = KafkaNode(scratch, _FAST_HOUSEKEEPING)
    with node:
        do.create_topics(node.bootstrap, CURRENT_TOPICS)
        produce(node.bootstrap, do.first_recipe())
        delete_records(node.bootstrap, {"deleted-prefix-0": 65, "deleted-part-0": 7, "deleted-all-0": -1})
        do.commit_offsets(node.bootstrap, "a.b-c_d")
        do.wait_cleaned(node.log_dir, cleaned)
        do.wait_deleted(node.log_dir / "deleted-prefix-0", 65)
        node.stop()
        node.start()
        produce(node.bootstrap, do.second_recipe())
        produce(node.bootstrap, do.leave_open())
        do.wait_cleaned(node.log_dir, cleaned)
        internal = ("__consumer_offsets-0", "__transaction_state-0")
        _expect_records(node.bootstrap, root, CURRENT_TOPICS, internal)
    _copy(node.log_dir, root, CURRENT_TOPICS, tuple(_DECODERS))
    _expect_dumps(root)


def _make_old(scratch: Path, root: Path) -> None:
    cleaned = [f"{topic.name}-0" for topic in OLD_TOPICS if topic.cleaned]
    node = ZkKafkaNode(scratch, _FAST_HOUSEKEEPING)
    with node:
        do.create_topics(node.bootstrap, OLD_TOPICS)
        recipe, more = do.old_recipes()
        produce(node.bootstrap, recipe)
        for message_format, further in more.items():
            do.set_topic_config(node.bootstrap, "mixed", "message.format.version", message_format)
            produce(node.bootstrap, further)
        do.wait_cleaned(node.log_dir, cleaned)
        _expect_records(node.bootstrap, root, OLD_TOPICS, ())
    _copy(node.log_dir, root, OLD_TOPICS, ())
    _expect_dumps(root)


def _make_transactions(scratch: Path, root: Path) -> None:
    """A directory as it is after a crash, but for `__cluster_metadata-0` and files that a start makes again."""
    ports = free_port(), free_port()
    nodes = [
        KafkaNode(scratch, {"log.index.size.max.bytes": "4096", **more}, ports=ports)
        for more in (states.EXPIRING, states.LEAVING)
    ]
    log_dir = nodes[0].log_dir
    left, expired = states.leave(nodes, log_dir)
    shutil.copytree(log_dir, root / "data", ignore=shutil.ignore_patterns(".lock", "__cluster_metadata-0"))
    described = {"expired": expired, "left": [one._asdict() for one in left]}
    (root / "expected" / "transactions.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def _expect_records(bootstrap: str, root: Path, topics: Sequence[Topic], internal: Sequence[str]) -> None:
    every = [*_directories(topics), *internal]
    _split_records(root, every, "read_uncommitted", consume_text(bootstrap, every))
    some = _directories([topic for topic in topics if topic.transactional])
    _split_records(root, some, "read_committed", consume_text(bootstrap, some, isolation="read_committed"))
    described = {
        topic.name: {"shows": topic.shows, "partitions": topic.partitions, "config": dict(topic.config)}
        for topic in topics
    }
    (root / "expected" / "topics.json").write_text(
        json.dumps(described, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _split_records(root: Path, partitions: Sequence[str], isolation: Isolation, text: str) -> None:
    lines: dict[str, list[str]] = {name: [] for name in partitions}
    for line in filter(None, text.split("\n")):
        record = json.loads(line)
        lines[f"{record['topic']}-{record['partition']}"].append(f"{line}\n")
    for name, own in lines.items():
        (root / "expected" / name).mkdir(exist_ok=True)
        (root / "expected" / name / f"{isolation}.jsonl").write_text("".join(own), encoding="utf-8")


def _copy(log_dir: Path, root: Path, topics: Sequence[Topic], internal: Sequence[str]) -> None:
    """The wanted partitions and every top-level file but the lock."""
    (root / "data").mkdir()
    for path in log_dir.iterdir():
        if path.is_file() and path.name != ".lock":
            shutil.copy2(path, root / "data")
    for name in (*_directories(topics), *internal):
        shutil.copytree(log_dir / name, root / "data" / name)


def _expect_dumps(root: Path) -> None:
    data = root / "data"
    jobs: dict[Path, list[str]] = {}
    for path in sorted(data.glob("*/*")):
        if path.suffix not in _DUMPED:
            continue
        name, out = str(path.relative_to(data)), root / "expected" / path.parent.name
        jobs[out / f"{path.name}.txt"] = ["--files", name]
        if path.suffix == ".log":
            decoder = _DECODERS.get(path.parent.name)
            deep = ["--files", name, "--deep-iteration", "--print-data-log", *([decoder] if decoder else [])]
            jobs[out / f"{path.name}.deep.txt"] = deep
    dump_many(jobs, cwd=data)


def _pack(root: Path, archive: Path) -> int:
    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = _TAR_SECONDS
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in (root, *sorted(root.rglob("*"))):
            tar.add(path, arcname=str(path.relative_to(root.parent)), recursive=False, filter=anonymous)
    return archive.stat().st_size


def _directories(topics: Sequence[Topic]) -> list[str]:
    return [f"{topic.name}-{number}" for topic in topics for number in range(topic.partitions)]


if __name__ == "__main__":
    main(sys.argv[1:])
