"""``seglog.ledger``: which jobs were adopted, so that each is only once, however often it is tried.

One regular file at the top of the log directory, under a checksum as the manifest's; the oldest application first::

    {"version": 1, "crc32c": "1f2e3d4c", "ledger": {"applications": [["txn:nightly", 20130107], ["query:5a…", 17]]}}

An application counts up: ``query:<queryId>`` by Spark's batch ids, ``txn:<txnAppId>`` by ``txnVersion``; a
``job:<uuid>`` has the one version 0. A version at or below the recorded one was adopted.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Final

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, write_atomically
from seglog.storage.adopt.manifest import seal, unseal
from seglog.storage.layout import LEDGER

MOST: Final = 4096
"""Applications kept, the newest. A query that sleeps while so many others write is forgotten."""
MOST_JOBS: Final = 256
"""Of those, jobs without a name of their own: they are asked for again within minutes or never."""
JOB: Final = "job:"


class Ledger:
    """Applications and the last version of each that was adopted, in order of the last time."""

    __slots__ = ("_versions",)

    def __init__(self, versions: Mapping[str, int] | None = None) -> None:
        self._versions = dict(versions or {})

    @property
    def versions(self) -> dict[str, int]:
        return dict(self._versions)

    def is_adopted(self, application: str, version: int) -> bool:
        return version <= self._versions.get(application, -1)

    def note(self, application: str, version: int) -> None:
        """Adopted now; the oldest go where there are too many."""
        versions = self._versions
        versions[application] = max(version, versions.pop(application, -1))
        jobs = [name for name in versions if name.startswith(JOB)]
        for name in jobs[: max(0, len(jobs) - MOST_JOBS)]:
            del versions[name]
        for name in list(versions)[: max(0, len(versions) - MOST)]:
            del versions[name]


def encode_ledger(ledger: Ledger) -> bytes:
    return seal("ledger", {"applications": [list(entry) for entry in ledger.versions.items()]})


def decode_ledger(data: bytes, file: str | None = None) -> Ledger:
    """`CorruptCheckpointError` where it cannot be read: an empty one would let jobs be adopted twice."""
    found = unseal("ledger", data, file).get("applications")
    versions: dict[str, int] = {}
    for entry in found if isinstance(found, list) else [None]:
        name, version = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not isinstance(name, str) or type(version) is not int:
            raise CorruptCheckpointError("'applications' is not a list of names and versions", file=file)
        versions[name] = version
    return Ledger(versions)


def read_ledger(fs: Fs, log_dir: str) -> Ledger:
    """Of a log directory; empty where there is no file."""
    path = os.path.join(log_dir, LEDGER)
    return decode_ledger(fs.read(path), path) if fs.exists(path) else Ledger()


def write_ledger(fs: Fs, log_dir: str, ledger: Ledger) -> None:
    write_atomically(fs, os.path.join(log_dir, LEDGER), encode_ledger(ledger))
