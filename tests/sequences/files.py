"""The files of a partition on both brokers, as they are while these run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.kit.waiting import wait_until

COMPARED: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_PREALLOCATED: Final = (".index", ".timeindex")
"""Of an active segment; what is not used is zeros in one and not there in the other."""
_CHECKPOINT: Final = "leader-epoch-checkpoint"


def files(partition: Path, log_start: int) -> dict[str, bytes]:
    """Names and contents of the files that are compared: not of what is all below the log's start, for each broker
    deletes that in its own time."""
    bases = sorted(int(path.stem) for path in partition.glob("*.log"))
    first = max((base for base in bases if base <= log_start), default=0)
    found = {}
    for path in sorted(partition.iterdir()):
        if path.suffix in COMPARED and int(path.stem) >= first + (path.suffix == ".snapshot"):
            data = path.read_bytes()
            found[path.name] = data.rstrip(b"\0") if path.suffix in _PREALLOCATED else data
    return found


def differences(real: Path, ours: Path, log_start: int) -> list[str]:
    """The files of a partition that are not the same in both. Kafka writes the epochs' file in the background."""
    left, right = files(real, log_start), files(ours, log_start)
    names = [name for name in sorted({*left, *right}) if left.get(name) != right.get(name)]
    if any(data for name, data in right.items() if name.endswith(".log")):  # else there is no epoch in it yet
        epochs = (ours / _CHECKPOINT).read_bytes()
        wait_until(lambda: (real / _CHECKPOINT).read_bytes() == epochs, f"{real / _CHECKPOINT} to be {epochs!r}")
    return names
