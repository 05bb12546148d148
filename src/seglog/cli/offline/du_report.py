"""What `seglog du` has measured, and its sentences, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from seglog.cli.output import count, format_size
from seglog.core.utf8 import decode_utf8
from seglog.records.compression import Codec
from seglog.storage.offline.space.keys import KeySpace, Share
from seglog.storage.offline.space.recompression import CodecEstimate
from seglog.storage.offline.space.usage import Usage, total_of

_SHOWN_CHARACTERS: Final = 40


class SpaceReport(NamedTuple):
    """Everything that was measured; ``aside`` are bytes of set-aside directories by path."""

    paths: Sequence[str]
    partitions: Sequence[Usage]
    total: Usage
    aside: Mapping[str, int]
    keys: KeySpace | None
    codecs: Sequence[CodecEstimate]

    def topics(self) -> list[tuple[str, Usage, int]]:
        """Each topic, the sum of its partitions, and their number; the largest first."""
        found: dict[str, list[Usage]] = {}
        for one in self.partitions:
            found.setdefault(one.topic_partition.topic if one.topic_partition else one.name, []).append(one)
        summed = [(name, total_of(usages, name), len(usages)) for name, usages in found.items()]
        return sorted(summed, key=lambda one: (-one[1].total, one[0]))


def keys_sentence(keys: KeySpace) -> str:
    """Whether counts of keys are exact."""
    text = f"{count(keys.records, 'record')} with {format_size(keys.size)} uncompressed"
    if keys.keyless.records:
        text += f", {keys.keyless.records} without a key ({format_size(keys.keyless.bytes)})"
    if keys.tombstones:
        text += f", {keys.tombstones} without a value"
    if keys.distinct is not None:
        return f"{text}; {count(keys.distinct, 'key')}, counted exactly"
    return (
        f"{text}; more than {keys.most_keys} keys, counted by a sketch: a key has at most {keys.lost_records} more "
        f"records and {format_size(keys.lost_bytes)} more than shown"
    )


def savings_sentences(keys: KeySpace) -> list[str]:
    """What compaction would save, and duplicates."""
    keyed = keys.size - keys.keyless.bytes
    compaction = (
        f"compaction would drop {_share_text(keys.compaction)} of the {format_size(keyed)} with keys: all but the last "
        "record of each key in its partition, before any lag and except for the active segment"
    )
    return [compaction, f"{_share_text(keys.duplicates)} of the bytes of values repeat an earlier value"]


def codec_sentence(one: CodecEstimate, size: int) -> str:
    sampled = "all batches" if one.error == 0.0 else f"a sample of {one.batches} of {one.population} batches"
    margin = "" if one.error == 0.0 else f" ± {format_size(round(one.error * size))}"
    return f"all in {one.codec.name.lower()}: {format_size(round(one.ratio * size))}{margin}, by {sampled}"


def _share_text(share: Share) -> str:
    return f"{share.share:.1%}" if share.is_exact else f"{share.share:.1%} ± {share.error:.1%} (by a sample of keys)"


def codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec <= max(Codec) else f"codec{codec}"


def key_text(key: bytes | None) -> str:
    """A key on one line of a table."""
    if key == b"":
        return "(empty)"
    text = decode_utf8((key or b"")[: 4 * _SHOWN_CHARACTERS])
    line = "".join(character if character.isprintable() else "\ufffd" for character in text[:_SHOWN_CHARACTERS])
    return line if len(text) <= _SHOWN_CHARACTERS else f"{line}... ({len(key or b'')} bytes)"
