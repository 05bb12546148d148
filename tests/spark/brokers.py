"""Directories of several brokers with replicas of one partition, made by the engine; who leads is for tests to do."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from seglog.storage.log.reads import UpTo

TOPIC_ID: Final = UUID(int=0xF11E)
SMALL: Final = {"internal.segment.bytes": "1024"}


class Brokers:
    """``root/b1``, ``root/b2`` …, each with a replica of ``t-0``; all are open until `close`."""

    def __init__(self, root: Path, count: int = 3, topic_ids: Sequence[UUID] = ()) -> None:
        self.root = root
        self.topic_ids = topic_ids or [TOPIC_ID] * count
        self.dirs: dict[int, LogDir] = {}
        self.open(*range(1, len(self.topic_ids) + 1))

    @property
    def glob(self) -> str:
        return f"{self.root}/b*"

    @property
    def paths(self) -> str:
        """As in a broker's ``log.dirs``."""
        return ",".join(str(self.root / f"b{number}") for number in range(1, len(self.topic_ids) + 1))

    def log(self, number: int, partition: int = 0) -> Log:
        return self.dirs[number].hold("t", self.topic_ids[number - 1], partition, SMALL)

    def open(self, *numbers: int) -> None:
        for number in numbers:
            path = self.root / f"b{number}"
            self.dirs[number] = LogDir.open(path, node_id=number, cluster_id="c", hw_follows_end=False)
            self.log(number)

    def close(self) -> None:
        for directory in self.dirs.values():
            directory.close()
        self.dirs.clear()

    def lead(self, number: int, epoch: int) -> None:
        self.log(number).assign_epoch(epoch)

    def append(self, number: int, count: int, value: bytes = b"v", partition: int = 0) -> None:
        """``count`` batches of one record, whose value says its offset."""
        log = self.log(number, partition)
        for at in range(log.log_end_offset, log.log_end_offset + count):
            log.append_records([NewRecord(value + b"%d" % at, timestamp=1_700_000_000_000 + at)])

    def follow(self, number: int, leader: int) -> None:
        """Truncate to the leader's log, and copy all of it."""
        ours, theirs = self.log(number), self.log(leader)
        if ours.log_end_offset:
            ours.truncate_to(min(ours.log_end_offset, theirs.end_offset_for_epoch(ours.epochs.latest).end_offset))
        while ours.log_end_offset < theirs.log_end_offset:
            found = theirs.read(ours.log_end_offset, up_to=UpTo.LOG_END)
            data = b"".join(bytes(batch) for _, batch in found.batches())
            ours.append(data, leader_epoch=theirs.epochs.latest, origin=Origin.REPLICATION)

    def commit(self, high: int, *numbers: int) -> None:
        """Set the high watermark that these brokers know."""
        for number in numbers:
            self.log(number).update_high_watermark(high)

    def take_away(self, number: int) -> None:
        """Take the disk of a broker away for a while."""
        shutil.move(str(self.root / f"b{number}"), str(self.root / f"away{number}"))

    def bring_back(self, number: int) -> None:
        shutil.move(str(self.root / f"away{number}"), str(self.root / f"b{number}"))
