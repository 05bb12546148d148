"""Where the last stable offset of a log must be, by a dumb model that reads all batches: a marker counts once the high
watermark has passed it."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from seglog.storage.log.log import Log
from seglog.storage.log.reads import UpTo


class _Transactions:
    """Those of a log up to ``end``: the first offset of each open one by producer, and with the marker's of each ended
    one. ``loaded``: how many had ended when the log was opened. Like Kafka's, a log that is opened knows of these only
    what it replays."""

    def __init__(self, log: Log) -> None:
        self.end = 0
        self.open: dict[int, int] = {}
        self.ended: list[tuple[int, int]] = []
        self.read_on(log)
        self.loaded = len(self.ended)

    def read_on(self, log: Log) -> None:
        offset = self.end
        while offset < log.log_end_offset:
            for header, _ in log.read(offset, 1 << 20, up_to=UpTo.LOG_END).batches():
                if header.is_control:
                    first = self.open.pop(header.producer_id, None)
                    if first is not None:
                        self.ended.append((first, header.base_offset))
                elif header.is_transactional:
                    self.open.setdefault(header.producer_id, header.base_offset)
                offset = header.last_offset + 1
        self.end = offset

    def stable_offsets(self, high_watermark: int) -> tuple[int, int]:
        """The least and the greatest that it may be."""
        least = most = min([high_watermark, *self.open.values()])
        for number, (first, marker) in enumerate(self.ended):
            if marker >= high_watermark:
                least = min(least, first)
                most = min(most, first) if number >= self.loaded else most
        return least, most


class StableOffsets:
    """The logs that were seen."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Log, _Transactions] = WeakKeyDictionary()

    def look(self, name: str, log: Log) -> None:
        if log.log_start_offset > 0:
            return
        found = self._seen.get(log)
        if found is None or log.log_end_offset < found.end:  # it was opened, or cut
            found = self._seen[log] = _Transactions(log)
        found.read_on(log)
        least, most = found.stable_offsets(log.high_watermark)
        assert least <= log.last_stable_offset <= most, (
            f"LSO: {name} is stable up to {log.last_stable_offset}, not {least}; the high watermark is "
            f"{log.high_watermark}, open are {found.open}"
        )
