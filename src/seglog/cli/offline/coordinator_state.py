"""The state of coordinators by the internal topics in a log directory: holders of transactions, offsets of groups."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import NamedTuple

from seglog.coordinators.group_records import OffsetAndMetadata, OffsetCommitKey
from seglog.coordinators.group_records import decode as decode_group
from seglog.coordinators.transactions.log_records import decode as decode_transaction
from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.core.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC
from seglog.core.types import TopicPartition
from seglog.storage.offline.internal_records import committed_records, partitions_of


class Holder(NamedTuple):
    """Who has a transaction open, by ``__transaction_state`` or its coordinator."""

    transactional_id: str
    state: str
    timeout_ms: int
    start_ms: int


class GroupPosition(NamedTuple):
    """A group's committed offset of a partition; ``source`` says where it was found."""

    group: str
    offset: int
    committed_ms: int | None
    source: str


Groups = Mapping[TopicPartition, GroupPosition]


def read_holders(fs: Fs, log_dir: str) -> dict[int, Holder]:
    """The transactional ids in a directory's partitions of ``__transaction_state``, by producer id. Damaged partitions
    are left out."""
    found: dict[str, tuple[int, Holder] | None] = {}
    for path in partitions_of(fs, log_dir, TRANSACTION_TOPIC):
        try:
            for record in committed_records(fs, path):
                decoded = decode_transaction(record.key, record.value) if record.key is not None else None
                if decoded is None:
                    continue
                name, one = decoded
                if one is None:
                    found.pop(name, None)
                else:
                    holder = Holder(name, one.state.label, one.timeout_ms, one.start_ms)
                    found[name] = (one.producer_id, holder)
        except CorruptError:
            continue
    return dict(one for one in found.values() if one is not None)


def read_positions(fs: Fs, log_dir: str, group: str) -> Groups:
    """The offsets that a group has committed, by a directory's partitions of ``__consumer_offsets``."""
    found: dict[TopicPartition, GroupPosition] = {}
    for path in partitions_of(fs, log_dir, OFFSETS_TOPIC):
        for record in committed_records(fs, path):
            decoded = decode_group(record.key, record.value) if record.key is not None else None
            if decoded is None:
                continue
            key, value = decoded
            if isinstance(key, OffsetCommitKey) and key.group == group:
                partition = TopicPartition(key.topic, key.partition)
                if isinstance(value, OffsetAndMetadata):
                    source = os.path.basename(path)
                    found[partition] = GroupPosition(group, value.offset, value.commit_timestamp, source)
                else:
                    found.pop(partition, None)
    return found
