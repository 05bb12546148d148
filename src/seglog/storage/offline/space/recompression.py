"""What another codec would save, measured on a sample of batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.records import any_magic
from seglog.records.batch import BATCH_OVERHEAD, Entry, read_header
from seglog.records.compression import Codec, compress, decompress
from seglog.storage.offline.space.usage import Reservoir


class CodecEstimate(NamedTuple):
    """The size of a log under a codec, over its present size, and twice the standard error of that ratio."""

    codec: Codec
    ratio: float
    error: float
    batches: int
    population: int


def estimate_codecs(fs: Fs, sample: Reservoir, codecs: Sequence[Codec]) -> list[CodecEstimate]:
    """Compress the sampled batches again, each as a whole. `CorruptError` names file and position."""
    sizes: dict[Codec, list[tuple[int, int]]] = {codec: [] for codec in codecs}
    for batch in sample.batches:
        with closing(fs.open(batch.file, write=False)) as file:
            data = file.pread(batch.size, batch.position)
        try:
            any_magic.check(data, Entry(0, len(data), batch.offset, 2))
            header = read_header(data)
            area = decompress(header.codec, memoryview(data)[BATCH_OVERHEAD:])
        except CorruptError as error:
            raise error.at(file=batch.file, base=batch.position, offset=batch.offset) from error
        for codec in codecs:
            sizes[codec].append((BATCH_OVERHEAD + len(compress(codec, area)), batch.size))
    return [
        CodecEstimate(codec, *_ratio(found, sample.seen), len(found), sample.seen) for codec, found in sizes.items()
    ]


def _ratio(found: Sequence[tuple[int, int]], population: int) -> tuple[float, float]:
    """The ratio of two sums over a sample, and twice its standard error (linearized; 0 if the sample is everything)."""
    new, old = (sum(pair[side] for pair in found) for side in (0, 1))
    if not old:
        return 1.0, 0.0
    ratio = new / old
    count = len(found)
    if count == population:
        return ratio, 0.0
    if count < 2:
        return ratio, 1.0
    mean = old / count
    variance = sum((one - ratio * other) ** 2 for one, other in found) / (count - 1)
    remaining = 1 - count / population
    return ratio, float(2 * (remaining * variance / count) ** 0.5 / mean)
