"""The repair of one partition, step by step.

For what a crash leaves behind, see `seglog.storage.offline.repair.file_replacement`.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from seglog.core.clock import Clock
from seglog.core.fs import File, Fs
from seglog.storage.formats.checkpoints import encode_partition_metadata
from seglog.storage.formats.leader_epochs import encode_epochs
from seglog.storage.formats.paths import LEADER_EPOCHS, MANIFEST, PARTITION_METADATA, WITNESS, SegmentPaths
from seglog.storage.log.manifest import Manifest, Sealed
from seglog.storage.log.producer_snapshots import snapshot_path
from seglog.storage.log.quarantine import forget_refused_start, save_log
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.repair.derived_files import build_epochs, build_indexes, build_producer_files
from seglog.storage.offline.repair.file_replacement import Replacer, own_directory, read_pieces
from seglog.storage.offline.repair.log_plan import LogRepair, PatchedFile
from seglog.storage.offline.repair.plan import PartitionRepair, look_through
from seglog.storage.offline.verify.conclusions import log_end, replay_of
from seglog.storage.offline.verify.indexes import NO_PROBES
from seglog.storage.offline.verify.manifests import chain_of, tail_of
from seglog.storage.offline.verify.partition_files import Around


class Done(NamedTuple):
    """A partition after its repair: where it ends, and where the files that were replaced are.

    ``open_transactions``: producers by first offset, if batches were given up: a marker may be among these.
    """

    path: str
    end_offset: int
    backup: str | None
    open_transactions: Mapping[int, int]


def repair_partition(fs: Fs, clock: Clock, repair: PartitionRepair, *, index_interval: int) -> Done:
    """Do what was planned. Raises OSError; what was done until then stays, and can be gone on with by a new plan."""
    path = repair.plan.path
    work = Replacer(fs, path, own_directory(path), clock)
    work.finish()  # of a repair that was stopped
    if repair.empties:
        Manifest.open(fs, path).forget_from(0)
        emptied = save_log(fs, path, repair.empties, clock.now_ms())
        forget_refused_start(fs, path)
        return Done(path, repair.end_offset, emptied.saved, {})
    _forget_sealed(fs, work, path, repair)
    for at, log in repair.logs.items():
        _repair_log(fs, work, repair.plan.segments[at].paths, log)
    for at in sorted(repair.indexes):
        _make_indexes(fs, work, repair.plan.segments[at].paths, index_interval)
    end, ongoing = _make_the_rest(fs, work, path, repair.plan.around, repair.topic_id, epochs=repair.epochs)
    if repair.forgets_topic_id:
        work.remove(os.path.join(path, PARTITION_METADATA))
    _check_sealed(fs, path, repair)
    work.finish()
    return Done(path, end, work.backup, ongoing if any(log.gone for log in repair.logs.values()) else {})


def _forget_sealed(fs: Fs, work: Replacer, path: str, repair: PartitionRepair) -> None:
    """Before a segment becomes another one: a crash must not leave one that the manifest does not know."""
    if repair.remakes_manifest:
        for name in (WITNESS, MANIFEST):
            work.remove(os.path.join(path, name))
    elif repair.forgotten:
        Manifest.open(fs, path).forget(repair.forgotten)


def _check_sealed(fs: Fs, path: str, repair: PartitionRepair) -> None:
    """Bring the manifest up to what the segments are now."""
    segments = [one.paths for one in repair.plan.segments]
    manifest = Manifest.open(fs, path)
    if repair.remakes_manifest and len(segments) > 1:
        manifest.add(_sealed(fs, paths) for paths in segments[:-1])
        if repair.plan.around.clean:
            manifest.close(_sealed(fs, segments[-1]))
    changed = [segments[at] for at in repair.logs if segments[at].base_offset in manifest.entries]
    manifest.forget(
        paths.base_offset for paths in changed if _differs(_sealed(fs, paths), manifest.entries[paths.base_offset])
    )


def _differs(found: Sealed, entry: Sealed) -> bool:
    return found != (entry if entry.chain is not None else entry._replace(chain=found.chain))


def _sealed(fs: Fs, paths: SegmentPaths) -> Sealed:
    file = fs.open(paths.log, write=False)
    try:
        chain, size = chain_of(file), file.size()
    finally:
        file.close()
    end_offset, crc = tail_of(fs, paths, NO_PROBES) or (paths.base_offset, 0)
    return Sealed(paths.base_offset, end_offset, size, crc, chain)


def _repair_log(fs: Fs, work: Replacer, paths: SegmentPaths, log: LogRepair) -> None:
    mtime_ms = fs.stat(paths.log).mtime_ms
    only_cut = not log.patches and all(gone.is_tail for gone in log.gone)
    staged = None
    if only_cut:
        work.save(paths.log, log.gone[0].start)
    else:
        work.save(paths.log)
        file = fs.open(paths.log, write=False)
        try:
            staged = work.stage(paths.log, _what_stays(file, log))
        finally:
            file.close()
    work.save(paths.timeindex)
    work.save(paths.txnindex)
    work.remove(paths.offset_index)
    if staged is None:
        work.cut(paths.log, log.gone[0].start)
    else:
        work.install(paths.log, staged)
    fs.set_mtime(paths.log, mtime_ms)


def _what_stays(file: File, log: LogRepair) -> Iterator[bytes]:
    patched = PatchedFile(file, log.patches)
    starts = [0, *(gone.end for gone in log.gone)]
    ends = [*(gone.start for gone in log.gone), file.size()]
    return read_pieces(patched, zip(starts, ends, strict=True))


def _make_indexes(fs: Fs, work: Replacer, paths: SegmentPaths, interval: int) -> None:
    file = fs.open(paths.log, write=False)
    try:
        made = build_indexes(file, paths.base_offset, interval)
    finally:
        file.close()
    work.save(paths.offset_index)
    work.replace(paths.timeindex, [made.timeindex])
    work.replace(paths.offset_index, [made.offset_index])


def _make_the_rest(
    fs: Fs, work: Replacer, path: str, around: Around, topic_id: UUID | None, *, epochs: bool
) -> tuple[int, Mapping[int, int]]:
    """Snapshots, abort indexes, epochs and the topic's id, by what the log is now.

    Returns where it ends, and the transactions that are open there.
    """
    plan, _, summaries, findings = look_through(fs, path, around)
    damaged = {finding.file for finding in findings if finding.severity is Severity.DAMAGE}
    end = log_end(plan, summaries)
    good = [one for one in plan.snapshots if one.offset <= end and one.file not in damaged]
    wanted = [one.offset for one in plan.snapshots if one.offset <= end and one.file in damaged]
    had_snapshots = bool(plan.snapshots)
    for snapshot in plan.snapshots:
        if snapshot.offset > end:
            work.remove(snapshot.file)
    at_end = end not in {one.offset for one in plan.snapshots}
    if had_snapshots and at_end and not plan.is_open and any(summary.batches for summary in summaries):
        wanted.append(end)
    replay = replay_of(fs, plan, summaries)
    made = build_producer_files(replay, good, wanted)
    for offset, data in made.snapshots.items():
        work.replace(snapshot_path(path, offset), [data])
    for offset in set(wanted) - made.snapshots.keys():
        work.remove(snapshot_path(path, offset))
    for segment in plan.segments:
        if segment.paths.txnindex in damaged:
            data = made.txn_indexes[segment.paths.base_offset]
            if data:
                work.replace(segment.paths.txnindex, [data])
            else:
                work.remove(segment.paths.txnindex)
    runs = [run for summary in summaries for run in summary.epochs]
    known = build_epochs(plan.epochs, runs) if epochs else plan.epochs
    if known is not None and (known.truncate_from_end(end + 1) or epochs):
        work.replace(os.path.join(path, LEADER_EPOCHS), [encode_epochs(known.entries)])
    if topic_id is not None:
        work.replace(os.path.join(path, PARTITION_METADATA), [encode_partition_metadata(topic_id)])
    return end, made.ongoing
