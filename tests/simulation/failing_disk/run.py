"""An application with a log directory on a disk that fails at chosen calls; it believes every error that it gets.

It has values that it must write once each, in their order. Told that nothing has changed, it writes the value again
when there is room. Told that the directory is out of use, it opens it again and looks into the log. A seed chooses the
operations, the calls that fail with ENOSPC or EIO, and when the process is killed.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from seglog.core.errors import LogDirFullError, LogDirOfflineError
from seglog.core.ground import Ground
from seglog.core.types import ProducerIdAndEpoch
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.finished_segment import read_finished, stamp
from seglog.storage.log.log import Log
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.adopt.adopting import DIR, T, stage
from tests.storage.disk import values

STEPS: Final = 60
_SMALL: Final[Mapping[str, object]] = {
    "internal.segment.bytes": 4000,
    "segment.index.bytes": 1200,
    "index.interval.bytes": 200,
    "retention.ms": -1,
}
_TAKE_ROOM: Final = ("pwrite", "truncate", "resize", "open", "map", "write", "allocate", "rename", "mkdir")
_BREAK: Final = ("pread", "pwrite", "fsync", "flush", "rename", "write", "truncate", "fsync_dir")
_FOREVER: Final = 1 << 40


class Run:
    """``counted``: the operations and what came of them."""

    def __init__(self, seed: int) -> None:
        self.counted: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._clock = ManualClock()
        self._fs = MemoryFs(clock=self._clock)
        self._numbers = itertools.count()
        self._producers = itertools.count(1)
        self._written: list[bytes] = []
        """In the order of the log, as the application has been told."""
        self._directory = self._open()
        config = {**_SMALL, "flush.messages": self._rng.choice((1, 2, 7, _FOREVER))}
        self._directory.create_topic("t", 1, config)

    def play(self) -> None:
        for _ in range(STEPS):
            if self._rng.random() < 0.3:
                self._heal()
            act = self._rng.choice((self._append, self._append, self._append, self._take, self._roll, self._flush))
            act()
            if self._rng.random() < 0.05:
                self._start_again("kill")
        self._heal()
        self._start_again("stop")
        self._directory.close()

    # The application

    def _append(self) -> None:
        texts = [self._text() for _ in range(self._rng.choice((1, 1, 3)))]
        self._plan_fault()

        def append(log: Log) -> None:
            log.append_records([NewRecord(text, timestamp=self._clock.now_ms()) for text in texts])

        self._write("append", texts, append)

    def _take(self) -> None:
        """Take over a finished segment. Its second try is another file, of another producer."""
        texts = [self._text() for _ in range(self._rng.choice((3, 12, 40)))]

        def take(log: Log) -> None:
            number = next(self._producers)
            part = stage(self._directory, texts, job=f"job{number}", task="0", partition=T)
            assert len(part.segments) == 1 or len(texts) > 3
            paths = [f"{DIR}/{part.directory}/{segment.name}" for segment in part.segments]
            for path in paths[1:]:
                self._fs.unlink(path)  # the first one is enough
            stamp(self._fs, paths[0], ProducerIdAndEpoch(number, 0), 0)
            segment = read_finished(self._fs, paths[0])
            del texts[segment.records :]
            if self._rng.random() < 0.5:
                log.roll()  # then the roll after the segment is the first one to need room
            self._plan_fault()
            log.append_segment(segment, max(log.epochs.latest, 0))

        self._heal()
        self._write("take", texts, take)

    def _write(self, name: str, texts: list[bytes], write: Callable[[Log], object]) -> None:
        """Once, however often it takes."""
        while True:
            try:
                write(self._log)
            except LogDirFullError as error:
                self.counted[f"{name}: full"] += 1
                self._check(f"after {error}")
                self._heal()
            except LogDirOfflineError:
                self.counted[f"{name}: offline"] += 1
                self._start_again("repair")
                found = list(values(self._log).values())
                if found[len(self._written) :] == texts:
                    self._written += texts
                    return
                self._check("after a repair")
            except OSError:
                self.counted[f"{name}: not read"] += 1
                self._start_again("repair")
                self._check("after a read error")
            else:
                self.counted[name] += 1
                self._written += texts
                self._check(f"after {name}")
                return

    def _roll(self) -> None:
        self._plan_fault()
        self._try("roll", self._log.roll)

    def _flush(self) -> None:
        self._plan_fault()
        self._try("flush", self._log.flush)

    def _try(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except LogDirFullError:
            self.counted[f"{name}: full"] += 1
        except LogDirOfflineError:
            self.counted[f"{name}: offline"] += 1
            self._start_again("repair")
        else:
            self.counted[name] += 1
        self._check(f"after {name}")

    def _text(self) -> bytes:
        return b"%d:" % next(self._numbers) + bytes(self._rng.randrange(200))

    # The disk and the process

    def _plan_fault(self) -> None:
        rng = self._rng
        if rng.random() < 0.5:
            return
        full = rng.random() < 0.7
        operation = rng.choice(_TAKE_ROOM if full else _BREAK)
        self.faults[f"{operation}: {'full' if full else 'broken'}"] += 1
        self._fs.fail_at(
            operation,
            rng.randrange(1, 8),
            error=errno.ENOSPC if full else errno.EIO,
            times=rng.choice((1, 1, 3, _FOREVER)),
        )

    def _heal(self) -> None:
        self._fs.heal()
        self._clock.advance(1_000)

    def _start_again(self, how: str) -> None:
        """The operator replaces the disk's cable, so to say: what was written is there."""
        self.counted[how] += 1
        self._heal()
        if how == "stop":
            self._directory.close()
        else:
            self._fs.kill()
        self._directory = self._open()
        if how != "repair":
            self._check(f"after a {how}")

    def _open(self) -> LogDir:
        opened = LogDir.open(
            DIR,
            ground=Ground(fs=self._fs, clock=self._clock, rng=random.Random(1)),
            config={"num.recovery.threads.per.data.dir": 1},
        )
        assert not opened.refused, opened.refused
        return opened

    @property
    def _log(self) -> Log:
        return self._directory.log(*T)

    # The model

    def _check(self, when: str) -> None:
        """The log has each value once, and no other: also those of an error that says that nothing has changed."""
        self._fs.heal()  # the disk does not fail the test
        log = self._log
        log.check()
        found = list(values(log).values())
        number = next((at for at, pair in enumerate(zip(found, self._written, strict=False)) if pair[0] != pair[1]), -1)
        twice = [text for text, count in Counter(found).items() if count > 1]
        assert found == self._written, (
            f"{when}: {len(found)} values are there, and {len(self._written)} were written; twice: {len(twice)}; the "
            f"first other one: {number}"
        )


def run(seed: int) -> Run:
    one = Run(seed)
    one.play()
    return one
