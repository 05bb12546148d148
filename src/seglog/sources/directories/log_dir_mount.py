"""Whether a worker sees the log directory that the driver saw when it planned.

A worker without the mount finds no directory, an empty mount point, or another directory under the same path. That says
nothing about the records: only in the right log directory does a missing partition mean a deleted one.
"""

from __future__ import annotations

import os.path
import socket
from collections.abc import Sequence
from typing import NamedTuple

from seglog.core.errors import CorruptError, InvalidLogDirError
from seglog.core.fs import Fs
from seglog.storage.formats.checkpoints import MetaProperties, encode_id, read_meta_properties
from seglog.storage.formats.paths import META_PROPERTIES


class LogDirMount(NamedTuple):
    """A log directory, and the identity in its ``meta.properties`` as the driver read it; None if it had none.

    Without an identity, any directory that exists and is not empty counts as the right one.
    """

    path: str
    identity: MetaProperties | None = None

    @classmethod
    def seen(cls, fs: Fs, path: str) -> LogDirMount:
        """The directory as this process sees it. A corrupt ``meta.properties`` gives no identity."""
        try:
            return cls(path, read_meta_properties(fs, path))
        except CorruptError:
            return cls(path)

    def check(self, fs: Fs) -> None:
        """Raise `InvalidLogDirError`, with this host and the path, unless the same directory is here."""
        if self.identity is None:
            if not fs.exists(self.path):
                raise self._error("it does not exist")
            if not fs.listdir(self.path):
                raise self._error("it is empty")
            return
        found = read_meta_properties(fs, self.path)
        if found is None:
            what = f"it has no {META_PROPERTIES}" if fs.exists(self.path) else "it does not exist"
            raise self._error(what)
        if _name(found) != _name(self.identity):
            raise self._error(f"this host has {_name(found)}, the driver {_name(self.identity)}")

    def _error(self, what: str) -> InvalidLogDirError:
        return InvalidLogDirError(
            f"{self.path} on host {socket.gethostname()} is not the log directory that the driver sees: {what}. "
            "Mount it on every worker under the same path"
        )


def mount_of(mounts: Sequence[LogDirMount], partition_path: str) -> LogDirMount:
    """The log directory of a partition's directory; without identity if ``mounts`` does not have it."""
    path = os.path.dirname(partition_path)
    return next((mount for mount in mounts if mount.path == path), LogDirMount(path))


def check_file(fs: Fs, log: str) -> None:
    """Raise `InvalidLogDirError` if the partition of the file ``log`` is missing because its log directory is."""
    if not fs.exists(os.path.dirname(log)):
        LogDirMount(os.path.dirname(os.path.dirname(log))).check(fs)


def _name(properties: MetaProperties) -> str:
    if properties.directory_id is not None:
        return f"directory {encode_id(properties.directory_id)}"
    return f"node {properties.node_id} of cluster {properties.cluster_id}"
