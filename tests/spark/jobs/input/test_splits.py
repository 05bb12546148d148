"""Text files divided into ranges: every line is in exactly one of them."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from seglog.core.fs import OsFs
from seglog.spark.jobs.input.splits import BLOCK, count_lines, read_lines, split_text
from tests.cases import case


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_ranges_of_text_have_every_line_once(tmp_path: Path, ending: bytes) -> None:
    rng = random.Random(0)
    fs = OsFs()
    for number in range(60):
        lines = [b"x" * rng.choice((0, 1, 5, 300)) for _ in range(rng.randrange(60))]
        data = ending.join(lines) + (ending if lines and rng.random() < 0.5 else b"")
        expected = data.split(b"\n")[:-1] if data.endswith(b"\n") else data.split(b"\n") if data else []
        path = tmp_path / str(number)
        path.write_bytes(data)
        found, numbers = [], []
        for split in split_text(fs, [str(path)], rng.choice((1, 7, 100, 5000)), whole=False):
            for part in read_lines(split):
                found += [part.data[start:end] for start, end in zip(part.starts, part.ends, strict=False)]
                first = count_lines(fs, str(path), split.start) + part.first
                numbers += list(range(first, first + len(part.ends)))
        assert found == [line.removesuffix(b"\r") for line in expected]
        assert numbers == list(range(1, len(expected) + 1))
        case()


def test_lines_larger_than_a_block_and_compressed_files(tmp_path: Path) -> None:
    fs = OsFs()
    lines = [b"a" * (BLOCK * 2 + 5), b"b", b"c" * BLOCK, b""]
    (tmp_path / "big").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "big.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n", 1))
    for name, share in (("big", 1 << 30), ("big", BLOCK), ("big", 1 << 20), ("big.gz", 1 << 10)):
        found = [
            part.data[start:end]
            for split in split_text(fs, [str(tmp_path / name)], share, whole=False)
            for part in read_lines(split)
            for start, end in zip(part.starts, part.ends, strict=False)
        ]
        assert found == lines, (name, share)
