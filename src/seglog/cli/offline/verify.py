"""`seglog verify`: everything in log directories, partitions and files, held to all that is known of it."""

from __future__ import annotations

from typing import Annotated

import typer

from seglog.cli.output import DAMAGE, FINE, Out, format_size, progress
from seglog.core.fs import OsFs
from seglog.storage.offline.findings import Finding, Severity
from seglog.storage.offline.verify import Verified, measure
from seglog.storage.offline.verify import verify as verify_paths

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="Log directories, partitions, or single files.", show_default=False),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Count as damage what only Kafka up to 3.9 writes into indexes.")
]


def verify(
    paths: Paths,
    strict: Strict = False,
    since_manifest: Annotated[
        bool,
        typer.Option(
            "--since-manifest",
            help="Of sealed segments in a seglog.manifest check only presence, size and end; read the rest in full.",
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads or processes.", show_default="one per CPU")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Check every byte and change nothing. Exit code 1 if there is damage; what is only unusual is a note."""
    fs = OsFs()
    with progress("checking", measure(paths, fs=fs)) as advance:
        verified = verify_paths(
            paths, fs=fs, strict=strict, workers=workers, since_manifest=since_manifest, progress=advance
        )
    return report(verified, json=json)


def report(verified: Verified, *, json: bool) -> int:
    """Print what was found, and the exit code that says it."""
    out = Out()
    try:
        if json:
            out.json(as_document(verified))
        else:
            for finding in verified.findings:
                out.line(f"{finding.severity.value}: {finding}")
            out.line(totals(verified))
    finally:
        out.flush()
    return DAMAGE if verified.is_damaged else FINE


def as_document(verified: Verified) -> dict[str, object]:
    counts = verified._asdict()
    counts["findings"] = [finding_document(finding) for finding in verified.findings]
    return counts


def finding_document(finding: Finding) -> dict[str, object]:
    """``position`` is null where a finding is about a whole file."""
    return {
        "severity": finding.severity.value,
        "file": finding.file,
        "position": finding.position if finding.position >= 0 else None,
        "offset": finding.offset,
        "reason": finding.reason,
    }


def totals(verified: Verified) -> str:
    """What was looked at and what came of it, in a line.

    >>> totals(Verified([], 1, 2, 2048, 3, 40))
    '1 partition, 2 segments, 2.0 KiB, 3 batches, 40 records: no damage'
    """
    looked_at = ", ".join(
        (
            _count(verified.partitions, "partition"),
            _count(verified.segments, "segment"),
            format_size(verified.bytes),
            _count(verified.batches, "batch", "es"),
            _count(verified.records, "record"),
        )
    )
    found = sum(finding.severity is Severity.DAMAGE for finding in verified.findings)
    notes = len(verified.findings) - found
    verdict = f"DAMAGE in {_count(found, 'place')}" if found else "no damage"
    return f"{looked_at}: {verdict}, {_count(notes, 'note')}" if notes else f"{looked_at}: {verdict}"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"
