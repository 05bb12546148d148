"""New segments in the place of old ones, so that a crash at any moment leaves the one or the other (``LocalLog.java``).

::

    new:  .cleaned ──1──► .swap ─────────────3──► plain name
    old:              plain name ──2──► .deleted ──────► gone after file.delete.delay.ms

Before the last file's step 1 is done the next start drops all that is new; from then on it drops what is old and
carries on with step 3 (`seglog.storage.log.crash_cleanup`). What is old it tells by offsets: segments behind the new
one's last batch, since nothing of them stayed, may outlive a crash, as if it was not their turn yet; the next round
takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seglog.storage.formats.paths import DELETED, SWAP
from seglog.storage.log.segment import Segment
from seglog.storage.log.truncation import remove_segments

if TYPE_CHECKING:
    from seglog.storage.log.log import Log


def replace_segments(log: Log, new: Sequence[Segment], old: Sequence[Segment]) -> None:
    """Put ``new``, open on their ``.cleaned`` files, which are on the disk, in the place of ``old``, neighbours.

    Both are ascending. Called with the log's lock held. Readers go on undisturbed: they see the old segments or the new
    ones, and keep files that they have open.
    """
    bases = {segment.base_offset for segment in new}
    replaced = [segment.base_offset for segment in old]
    log.manifest.forget(replaced)  # before a crash can leave the new ones in their place
    for segment in sorted(new, key=lambda segment: -segment.base_offset):
        segment.rename(SWAP)
    first = log.segments.index(old[0])
    assert log.segments[first : first + len(old)] == tuple(old), "a group is of neighbours"
    log.segments = (*log.segments[:first], *new, *log.segments[first + len(old) :])
    log.manifest.forget(replaced)  # a flush may have written them down again
    for segment in old:
        if segment.base_offset in bases:  # its producer snapshot is the new segment's now
            segment.rename(DELETED)
            log.background.schedule(log.config.file_delete_delay_ms, segment.delete)
        else:
            remove_segments(log, [segment], later=True)
    for segment in sorted(new, key=lambda segment: segment.base_offset):
        segment.rename("")
    log.fs.fsync_dir(log.path)
