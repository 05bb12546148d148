"""``seglog.ledger``: which jobs were adopted, so that each is only once, however often it is tried.

One regular file at the top of the log directory, under a checksum as the manifest's; the oldest application first::

    {"version": 1, "crc32c": "1f2e3d4c", "ledger": {"applications": [["txn:nightly", 20130107], ["query:5a…", 17]]}}

Beside them are ``inputs``, how far the ingest job has read which files (`InputMark`), and
``digests`` of the input of versions: ``["txn:nightly", 20130107, "9f86…"]``. ``open`` has the intakes of jobs whose
commit a broker decides (`OpenIntake`): ``["4f0c…-812", 1357016400000, "job:4f0c…-812", 0, [mark, …], "9f86…"]``.

An application counts up: ``query:<queryId>`` by Spark's batch ids, ``txn:<txnAppId>`` by ``txnVersion``; a
``job:<uuid>`` has the one version 0. A version at or below the recorded one was adopted.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, write_atomically
from seglog.storage.formats.adopt_manifest import InputMark, decode_marks, encode_marks, seal, unseal
from seglog.storage.formats.paths import LEDGER

MOST: Final = 4096
"""Applications kept, the newest. A query that sleeps while so many others write is forgotten."""
MOST_JOBS: Final = 256
"""Of those, jobs without a name of their own: they are asked for again within minutes or never."""
MOST_INPUTS: Final = 100_000
"""Files kept, the newest: some 30 MB of the ledger. Of one that is forgotten all is new."""
JOB: Final = "job:"


class OpenIntake(NamedTuple):
    """The files of a job that commits through the directory's broker, since ``begun_ms``. Until it is known whether the
    job has committed, nothing says whether their ``marks`` count."""

    job: str
    begun_ms: int
    application: str
    version: int
    marks: tuple[InputMark, ...]
    digest: str

    @property
    def topics(self) -> set[str]:
        return {mark.topic for mark in self.marks}


class Ledger:
    """Applications and the last version of each that was adopted, and marks of files, in order of the last time."""

    __slots__ = ("_digests", "_inputs", "_open", "_versions")

    def __init__(
        self,
        versions: Mapping[str, int] | None = None,
        inputs: Iterable[InputMark] = (),
        digests: Mapping[tuple[str, int], str] | None = None,
        open_intakes: Iterable[OpenIntake] = (),
    ) -> None:
        self._open = {intake.job: intake for intake in open_intakes}
        self._versions = dict(versions or {})
        self._inputs = {mark.key: mark for mark in inputs}
        self._digests = dict(digests or {})

    @property
    def inputs(self) -> tuple[InputMark, ...]:
        return tuple(self._inputs.values())

    @property
    def digests(self) -> dict[tuple[str, int], str]:
        return dict(self._digests)

    def digest_of(self, application: str, version: int) -> str | None:
        """Of the input that a version was adopted with; None if none was given, or it is forgotten."""
        return self._digests.get((application, version))

    def input(self, topic: str, path: str) -> InputMark | None:
        return self._inputs.get((topic, path))

    @property
    def open_intakes(self) -> tuple[OpenIntake, ...]:
        return tuple(self._open.values())

    def open_for(self, topic: str) -> OpenIntake | None:
        """An intake into ``topic`` that is open."""
        return next((intake for intake in self._open.values() if topic in intake.topics), None)

    def begin_intake(self, intake: OpenIntake) -> None:
        self._open[intake.job] = intake

    def end_intake(self, job: str, *, committed: bool) -> None:
        """The job has committed, so its marks count; or it never will. Nothing happens if its intake is not open."""
        intake = self._open.pop(job, None)
        if intake is not None and committed:
            self.note_inputs(intake.application, intake.version, intake.marks, intake.digest)

    def note_inputs(self, application: str, version: int, marks: Iterable[InputMark], digest: str) -> None:
        """These files were read so far, by this version; the oldest marks and digests go where there are too many."""
        for mark in marks:
            self._inputs.pop(mark.key, None)
            self._inputs[mark.key] = mark
        for key in list(self._inputs)[: max(0, len(self._inputs) - MOST_INPUTS)]:
            del self._inputs[key]
        if digest and not application.startswith(JOB):
            self._digests[application, version] = digest
        for one in list(self._digests)[: max(0, len(self._digests) - MOST)]:
            del self._digests[one]

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
    content: dict[str, object] = {"applications": [list(entry) for entry in ledger.versions.items()]}
    if ledger.inputs:
        content["inputs"] = encode_marks(ledger.inputs)
    if ledger.digests:
        content["digests"] = [[*key, digest] for key, digest in ledger.digests.items()]
    if ledger.open_intakes:
        content["open"] = [
            [one.job, one.begun_ms, one.application, one.version, encode_marks(one.marks), one.digest]
            for one in ledger.open_intakes
        ]
    return seal("ledger", content)


def decode_ledger(data: bytes, file: str | None = None) -> Ledger:
    """`CorruptCheckpointError` where it cannot be read: an empty one would let jobs be adopted twice."""
    content = unseal("ledger", data, file)
    found = content.get("applications")
    versions: dict[str, int] = {}
    for entry in found if isinstance(found, list) else [None]:
        name, version = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not isinstance(name, str) or type(version) is not int:
            raise CorruptCheckpointError("'applications' is not a list of names and versions", file=file)
        versions[name] = version
    digests = {}
    for entry in content.get("digests", []):
        if not isinstance(entry, list) or [type(one) for one in entry] != [str, int, str]:
            raise CorruptCheckpointError("'digests' is not a list of applications, versions and digests", file=file)
        digests[entry[0], entry[1]] = entry[2]
    inputs = decode_marks(content.get("inputs", []), file)
    return Ledger(versions, inputs, digests, [_open_intake(entry, file) for entry in content.get("open", [])])


def _open_intake(entry: object, file: str | None) -> OpenIntake:
    if not isinstance(entry, list) or [type(one) for one in entry] != [str, int, str, int, list, str]:
        raise CorruptCheckpointError("'open' is not a list of jobs and marks", file=file)
    job, begun_ms, application, version, marks, digest = entry
    return OpenIntake(job, begun_ms, application, version, decode_marks(marks, file), digest)


def read_ledger(fs: Fs, log_dir: str) -> Ledger:
    """The ledger of a log directory; empty if it has no such file."""
    path = os.path.join(log_dir, LEDGER)
    return decode_ledger(fs.read(path), path) if fs.exists(path) else Ledger()


def write_ledger(fs: Fs, log_dir: str, ledger: Ledger) -> None:
    write_atomically(fs, os.path.join(log_dir, LEDGER), encode_ledger(ledger))
