"""Bits of a partition's directory flipped, one at a time: verification finds each.

What a CRC covers is argued and checked in two steps: the CRC-32C of a batch changes with every single bit of it, and a
random sample of these flips goes through the whole of verification. Of all other bytes one bit each goes through it; in
`make test-long`, every bit.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from seglog.records.batch import CRC_START, check_crc, compute_crc, read_header
from tests.cases import case, is_long
from tests.storage.offline.verify.verified import (
    PARTITION,
    Flipper,
    batches,
    bits_under_no_crc,
    bytes_of,
    flip,
    look,
    make_dir,
)


@pytest.mark.parametrize(("kind", "size"), [("plain", 62_000), ("transactions", 20_000), ("rolled", 20_000)])
def test_every_bit_that_no_crc_covers_is_found(tmp_path: Path, kind: str, size: int) -> None:
    partition = make_dir(tmp_path / "logs", kind, size=size, batches_of=(1, 8, 16))
    assert look(tmp_path / "logs").findings == []
    missed = []
    for name, data in bytes_of(partition).items():
        flipper = Flipper(partition / name)
        for position, bit in bits_under_no_crc(name, data):
            if bit != position % 8 and not is_long():
                continue
            flipper.flip(position, bit)
            if not look(tmp_path / "logs").is_damaged:
                missed.append((name, position, bit))
            flipper.restore(position)
            case()
        flipper.close()
    assert missed == []
    assert look(tmp_path / "logs").findings == []


def test_every_bit_under_a_crc_is_found_by_it(tmp_path: Path) -> None:
    partition = make_dir(tmp_path / "logs", "transactions")
    data = (partition / f"{0:020d}.log").read_bytes()
    assert len(data) > 60_000
    for entry in batches(data):
        batch = bytearray(data[entry.position : entry.position + entry.size])
        header = read_header(batch)
        check_crc(batch, header)
        unnoticed = 0
        for position in range(CRC_START, len(batch)):
            for bit in range(8):
                batch[position] ^= 1 << bit
                unnoticed += compute_crc(batch, 0, len(batch)) == header.crc
                batch[position] ^= 1 << bit
        assert unnoticed == 0
        case((len(batch) - CRC_START) * 8)


@pytest.mark.parametrize("fast", [False, True])
def test_a_sample_of_those_by_all_of_verification(tmp_path: Path, fast: bool) -> None:
    partition = make_dir(tmp_path / "logs", "rolled")
    rng = random.Random(0)
    files = {name: data for name, data in bytes_of(partition).items() if name.endswith(".log")}
    for name, data in files.items():
        for entry in batches(data):
            position, bit = entry.position + rng.randrange(CRC_START, entry.size), rng.randrange(8)
            (partition / name).write_bytes(flip(data, position, bit))
            findings = look(tmp_path / "logs", fast=fast).findings
            places = [(finding.file, finding.position) for finding in findings if "CRC" in finding.reason]
            assert places == [(str(tmp_path / "logs" / PARTITION / name), entry.position)]
            case()
        (partition / name).write_bytes(data)
