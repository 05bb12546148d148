"""Files that are well formed and wrong: what only a look at another file can tell, `verify` must not miss."""

from __future__ import annotations

from seglog.core.fs import Fs
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.log.index import OFFSET_ENTRY
from seglog.storage.log.log import Log
from seglog.storage.log.producers import Origin, decode_snapshot, encode_snapshot
from seglog.storage.offline.verify import verify
from tests.storage.disk import PATH, fill, load, name, new_disk


def _produce(log: Log, sequence: int) -> None:
    log.append(
        encode_batch(
            [NewRecord(b"v" * 50)], producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
        )
    )


def _closed_log() -> tuple[Fs, int]:
    """Two segments, of which the first has index entries, a producer and an aborted transaction; the second's base."""
    fs = new_disk()
    log = load(fs).log
    for sequence in range(4):
        _produce(log, sequence)
    marker = end_txn_marker(commit=False, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=1_000)
    log.append(marker, origin=Origin.COORDINATOR)
    fill(log, 3)
    base = log.roll().base_offset
    fill(log, 1)
    log.close()
    return fs, base


def _findings(fs: Fs) -> list[str]:
    found = verify([PATH], fs=fs, fast=False, workers=1)
    return [str(finding) for finding in found.findings]


def test_a_sound_log() -> None:
    fs, _ = _closed_log()
    assert _findings(fs) == []


def test_an_index_entry_between_two_batches() -> None:
    fs, _ = _closed_log()
    data = bytearray(fs.read(name(0, ".index")))
    offset, position = OFFSET_ENTRY.unpack_from(data)
    OFFSET_ENTRY.pack_into(data, 0, offset, position + 1)
    fs.write(name(0, ".index"), data)
    (finding,) = _findings(fs)
    assert ".index, position 0" in finding
    assert "no batch starts there" in finding


def test_a_snapshot_of_another_sequence() -> None:
    fs, base = _closed_log()
    producers = decode_snapshot(fs.read(name(base, ".snapshot")))
    entry = producers.entries[7]
    (batch,) = entry.batches
    producers.entries[7] = entry._replace(batches=(batch._replace(last_sequence=9),))
    fs.write(name(base, ".snapshot"), encode_snapshot(producers))
    (finding,) = _findings(fs)
    assert f"{base:020d}.snapshot" in finding
    assert "producer 7: its last batch is (9," in finding


def test_an_abort_index_that_is_gone() -> None:
    fs, _ = _closed_log()
    fs.unlink(name(0, ".txnindex"))
    (finding,) = _findings(fs)
    assert ".txnindex" in finding
    assert "producer 7 aborted 0 to 4, which is missing here" in finding
