"""The errors in an answer to Produce, for who counts them: `seglog.protocol.produce.write_produce`, read again."""

from __future__ import annotations

from seglog.protocol.produce import FLEXIBLE, TOPIC_IDS
from seglog.protocol.wire import WireReader


def errors_of_answer(version: int, body: bytes) -> list[int]:
    """The error code of each partition, 0 for none."""
    reader = WireReader(memoryview(body))
    flexible = version >= FLEXIBLE

    def count() -> int:
        return reader.uvarint() - 1 if flexible else reader.integer("int32")

    def skip_text() -> None:
        reader.take(max(0, reader.uvarint() - 1 if flexible else reader.integer("int16")))

    def skip_tags() -> None:
        if flexible:
            reader.skip_tags()

    found = []
    for _ in range(count()):
        if version >= TOPIC_IDS:
            reader.take(16)
        else:
            skip_text()
        for _ in range(count()):
            reader.take(4)
            found.append(reader.integer("int16"))
            reader.take(24 if version >= 5 else 16)
            if version >= 8:
                for _ in range(count()):
                    reader.take(4)
                    skip_text()
                    skip_tags()
                skip_text()
            skip_tags()
        skip_tags()
    return found
