"""Which clients have passed which tests with seglog: `docs_site/clients.json`, which the compatibility page shows.

`pytest --record-clients` writes it after a run. A run replaces the figures of the clients and subjects that it tried;
figures of another version of the client go.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

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
Tried = tuple[str, str]
"""A client, by its name in `CLIENTS` or as a tool, and a subject."""


def tried(file: str, params: Mapping[str, Any]) -> Tried | None:
    """Who tries what in a test of that file with these parameters; None if it is not one client with seglog."""
    subject = {**SUBJECTS, **_TOOLS}.get(file)
    peers = {str(value) for name, value in params.items() if name in ("server", "cluster", "kind")}
    if subject is None or peers - {"ours"}:
        return None
    if params.get("name") in CLIENTS | OTHERS:
        return params["name"], subject
    if "version" in params:
        return f"tools-{params['version']}", subject
    return (subject, subject) if subject == "kcat" else None


def record(passed: Iterable[Tried]) -> None:
    """Write the figures of a run in which every test has passed."""
    found: dict[str, dict[str, Any]] = json.loads(PATH.read_text()) if PATH.exists() else {}
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for client, subject in passed:
        counts[client][subject] += 1
    for client, now in counts.items():
        version = _version(client)
        before = found.get(client, {})
        kept = before["passed"] if before.get("version") == version else {}
        found[client] = {"version": version, "passed": dict(sorted({**kept, **now}.items()))}
    PATH.write_text(json.dumps(dict(sorted(found.items())), indent=2) + "\n")


def _version(client: str) -> str:
    if client in CLIENTS | OTHERS:
        return version_of((CLIENTS | OTHERS)[client])
    if client.startswith("tools-"):
        return client.removeprefix("tools-")
    said = re.search(r"Version (\S+)", kcat("127.0.0.1:1", "-V"))
    assert said is not None
    return said[1]
