"""`seglog verify`: check every byte of log directories, partitions and files."""

from __future__ import annotations

from typing import Annotated

import typer

from seglog.cli.options import JsonDocument
from seglog.cli.output import DAMAGE, FINE, Out, count, format_size
from seglog.core.fs import OsFs
from seglog.core.progress import progress
from seglog.storage.offline.findings import Finding, Severity
from seglog.storage.offline.verify import VerifyReport, measure
from seglog.storage.offline.verify import verify as verify_paths

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="Log directories, partitions, or single files.", show_default=False),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Count index entries that only Kafka up to 3.9 writes as damage.")
]


def verify(
    paths: Paths,
    strict: Strict = False,
    since_manifest: Annotated[
        bool,
        typer.Option(
            "--since-manifest",
            help="Of sealed segments in a seglog.manifest check only presence, size and end; read the rest.",
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads or processes.", show_default="one per CPU")
    ] = None,
    json: JsonDocument = False,
) -> int:
    """Check every byte and change nothing. The exit code is 1 if there is damage. A note is unusual, but not damage."""
    fs = OsFs()
    with progress("checking", measure(paths, fs=fs)) as advance:
        verified = verify_paths(
            paths, fs=fs, strict=strict, workers=workers, since_manifest=since_manifest, progress=advance
        )
    return report(verified, json=json)


def report(verified: VerifyReport, *, json: bool) -> int:
    """Print the findings; return the exit code."""
    with Out() as out:
        if json:
            out.json(as_document(verified))
        else:
            for finding in verified.findings:
                out.line(f"{finding.severity.value}: {finding}")
            out.line(totals(verified))
    return DAMAGE if verified.is_damaged else FINE


def as_document(verified: VerifyReport) -> dict[str, object]:
    counts = verified._asdict()
    counts["findings"] = [finding_document(finding) for finding in verified.findings]
    return counts


def finding_document(finding: Finding) -> dict[str, object]:
    """``position`` is null if a finding concerns a whole file."""
    return {
        "severity": finding.severity.value,
        "file": finding.file,
        "position": finding.position if finding.position >= 0 else None,
        "offset": finding.offset,
        "reason": finding.reason,
    }


def totals(verified: VerifyReport) -> str:
    """The amount of checked data and the verdict, in one line.

    >>> totals(VerifyReport([], 1, 2, 2048, 3, 40))
    '1 partition, 2 segments, 2.0 KiB, 3 batches, 40 records: no damage'
    """
    checked = ", ".join(
        (
            count(verified.partitions, "partition"),
            count(verified.segments, "segment"),
            format_size(verified.bytes),
            count(verified.batches, "batch", "es"),
            count(verified.records, "record"),
        )
    )
    found = sum(finding.severity is Severity.DAMAGE for finding in verified.findings)
    notes = len(verified.findings) - found
    verdict = f"DAMAGE in {count(found, 'place')}" if found else "no damage"
    return f"{checked}: {verdict}, {count(notes, 'note')}" if notes else f"{checked}: {verdict}"
