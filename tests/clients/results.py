"""Which tests clients have passed with seglog and failed with it or with Kafka: `docs_site/clients.json`, which the
compatibility page shows.

`pytest --record-clients` writes it after a run. A run replaces the figures of the clients and subjects that it tried;
figures of another version of the client go.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.clients.kcat import kcat
from tests.clients.versions import CLIENTS, OTHERS, version_of

PATH: Final = Path(__file__).parents[2] / "docs_site" / "clients.json"
SUBJECTS: Final = {
    "test_clients_records": "records",
    "test_clients_groups": "groups",
    "test_clients_admin": "admin",
    "test_clients_errors": "errors",
    "test_clients_transactions": "transactions",
    "test_clients_cuts": "cuts",
    "test_cluster_clients": "cluster",
}
"""Test files of client libraries, and the subjects under which they count."""
_TOOLS: Final = {"test_clients_kcat": "kcat", "test_clients_tools": "tools", "test_cluster_tools": "cluster tools"}


class Tried(NamedTuple):
    """A client, by its name in `CLIENTS` or as a tool, which tries a subject with "ours" or "kafka"."""

    client: str
    subject: str
    peer: str


def tried(file: str, params: Mapping[str, Any]) -> Tried | None:
    """Who tries what in a test of that file with these parameters; None if it is not one client."""
    subject = {**SUBJECTS, **_TOOLS}.get(file)
    peer = next((str(value) for name, value in params.items() if name in ("server", "cluster", "kind")), "ours")
    if subject is None:
        return None
    if params.get("name") in CLIENTS | OTHERS:
        return Tried(params["name"], subject, peer)
    if "version" in params:
        return Tried(f"tools-{params['version']}", subject, peer)
    return Tried(subject, subject, peer) if subject == "kcat" else None


def record(passed: Iterable[Tried], failed: Iterable[Tried], path: Path = PATH) -> None:
    """Write the figures of a run: how many tests passed with ours, and how many failed with ours and with Kafka."""
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    good, bad = Counter(passed), Counter(failed)
    subjects = {(one.client, one.subject) for one in (*good, *bad)}
    for client in {client for client, _ in subjects}:
        version = _version(client)
        before = found.get(client, {})
        kept = before if before.get("version") == version else {}
        now = [subject for of, subject in subjects if of == client]
        figures = {
            "passed": {subject: good[Tried(client, subject, "ours")] for subject in now},
            "failed": {subject: bad[Tried(client, subject, "ours")] for subject in now},
            "failed_with_kafka": {subject: bad[Tried(client, subject, "kafka")] for subject in now},
        }
        found[client] = {"version": version}
        for name, counts in figures.items():
            merged = {**kept.get(name, {}), **counts}
            if left := {subject: count for subject, count in sorted(merged.items()) if count}:
                found[client][name] = left
    path.write_text(json.dumps(dict(sorted(found.items())), indent=2) + "\n")


def _version(client: str) -> str:
    if client in CLIENTS | OTHERS:
        return version_of((CLIENTS | OTHERS)[client])
    if client.startswith("tools-"):
        return client.removeprefix("tools-")
    said = re.search(r"Version (\S+)", kcat("127.0.0.1:1", "-V"))
    assert said is not None
    return said[1]
