"""`docs/compatibility.md`: what works with seglog, by the table of APIs and by results of tests."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from seglog.broker.apis.unsupported import UnsupportedApis
from seglog.protocol.apis import APIS, name_of
from tests.clients.versions import CLIENTS, Client, package_of
from tests.kafka.jars import CURRENT

__all__ = ["compatibility"]

_SUBJECTS: Final = {
    "records": "records",
    "groups": "groups",
    "admin": "admin requests",
    "errors": "errors",
    "transactions": "transactions",
    "cuts": "cut connections",
    "cluster": "dying brokers",
}
"""Of the clients' tests, as `tests/clients/results.py` names them."""
_PLACES: Final = {"one": "one broker", "three": "three brokers", "kafka": "Kafka"}
"""Of the products' tests, as `tests/ecosystem/places.py` names them."""
_SECURITY: Final = (
    ("aiokafka", "0.14.0", "PLAIN, SCRAM, ACLs, TLS", 17),
    ("kafka-python", "3.1.0.dev", "PLAIN, SCRAM, TLS, ACLs", 12),
    ("confluent-kafka-python", "2.15.0", "ACLs, SCRAM credentials, authorized operations", 3),
    ("franz-go", "1.22.2", "SCRAM", 2),
    ("sarama", "1.61.1", "quotas", 1),
    ("kafkajs", "2.2.4", "PLAIN, SCRAM, OAUTHBEARER, ACLs, TLS, re-authentication", 118),
)
"""The clients' own tests of security: the release of the suite, subjects, and how many passed with seglog."""


def compatibility(root: Path) -> str:
    """Products, clients, APIs by version, and KIPs: a reader looks first for the program that is to use seglog."""
    lines = [
        "# Compatibility",
        "",
        "`python -m docs_site --write` writes this page from `protocol/apis.py`, `docs_site/kips.toml`, and the",
        "results of tests with third-party clients (`docs_site/clients.json`) and products",
        "(`docs_site/ecosystem.json`).",
        "",
        *_products(root),
        "",
        *_clients(root),
        "",
        "## APIs",
        "",
        "seglog answers a refused API at once with an error that says so ([differences](differences.md#the-broker)).",
        "",
        "| key | API | versions | |",
        "|---:|---|---|---|",
    ]
    refused = UnsupportedApis(lambda _, __: None).handlers()
    for key, row in sorted(APIS.items()):
        low = max(row.low, row.served)
        versions = f"{low}" if low == row.high else f"{low} to {row.high}"
        lines.append(f"| {int(key)} | {name_of(key)} | {versions} | {'refused' if key in refused else ''} |")
    lines += ["", "## KIPs", "", "| KIP | | seglog | shown by |", "|---|---|---|---|"]
    for kip in tomllib.loads((root / "docs_site" / "kips.toml").read_text())["kip"]:
        shown = ", ".join(f"`{name}`" for name in kip.get("tests", ()))
        lines.append(f"| KIP-{kip['number']} | {kip['title']} | {kip['state']} | {shown} |")
    return "\n".join(lines) + "\n"


def _clients(root: Path) -> Iterator[str]:
    results = json.loads((root / "docs_site" / "clients.json").read_text())
    yield "## Clients"
    yield ""
    yield "The numbers of tests of each subject that passed with seglog in the last run of `make interop-all`. The same"
    yield f"tests run against Kafka {CURRENT}. A cell names tests that failed with seglog or with Kafka. A dash marks"
    yield "something that the client cannot do with Kafka either."
    yield ""
    subjects = " | ".join(_SUBJECTS.values())
    abilities = "codecs | idempotence | static members | cooperative groups | KIP-848"
    yield f"| client | version | {subjects} | {abilities} |"
    yield f"|---|---|{'---:|' * len(_SUBJECTS)}---|---|---|---|---|"
    for name, client in CLIENTS.items():
        counts = " | ".join(_cell(results[name], subject) for subject in _SUBJECTS)
        can = " | ".join("yes" if has else "-" for has in _abilities(client))
        codecs = ", ".join(client.codecs)
        yield f"| {package_of(client)} | {results[name]['version']} | {counts} | {codecs} | {can} |"
    yield ""
    yield "| other clients and tools | version | tests passed |"
    yield "|---|---|---:|"
    for name, found in results.items():
        if name not in CLIENTS:
            tool = "Kafka's command line tools" if name.startswith("tools-") else name
            yield f"| {tool} | {found['version']} | {_cell(found)} |"
    yield ""
    yield "The clients' own tests of security, run by hand with users and certificates made for them: kafkajs's own"
    yield "has a SHA-1 signature, which OpenSSL refuses. None of these failed with seglog. aiokafka's two tests of"
    yield "Kerberos, which seglog does not support, were left out."
    yield ""
    yield "| subjects | suite | version | tests passed |"
    yield "|---|---|---|---:|"
    for suite, version, tested, passed in _SECURITY:
        yield f"| {tested} | {suite} | {version} | {passed} |"
    yield ""
    yield "franz-go's own tests of groups and transactions pass in `tests/interop/test_clients_franz_go.py`."
    yield "Spark's Kafka connector reads from and writes to seglog in `tests/interop/test_connector_broker.py`."


def _cell(found: dict[str, Any], subject: str | None = None) -> str:
    """The tests of one subject, or of all."""
    passed, failed, with_kafka = (
        sum(count for of, count in found.get(name, {}).items() if subject in (None, of))
        for name in ("passed", "failed", "failed_with_kafka")
    )
    if not passed and not failed:
        return "-"
    notes = [f"{failed} failed"] * bool(failed) + [f"Kafka: {with_kafka} failed"] * bool(with_kafka)
    return f"{passed} ({', '.join(notes)})" if notes else str(passed)


def _abilities(client: Client) -> tuple[bool, ...]:
    return client.idempotent, client.static, client.cooperative, client.server_side


def _counted(result: dict[str, Any]) -> str:
    count = "failed" if result["counted"] is None else f"{result['counted']:,}"
    return count if result["kafka"] in (None, CURRENT) else f"{count} ({result['kafka']})"


def _products(root: Path) -> Iterator[str]:
    yield "## Products"
    yield ""
    yield "`make ecosystem` runs each product unmodified on one seglog broker, on three brokers of which one is killed"
    yield "during the run, and on Kafka. A cell shows how many records the product wrote. If the product promises"
    yield "exactly once, the test fails unless these are the expected records; a product that promises at least once"
    yield "may write more. A job that missed this is shown as failed. A dash stands for a job that did not run."
    yield f"Kafka is {CURRENT} where a cell names no other version."
    yield ""
    yield f"| product | version | job | expected | {' | '.join(_PLACES.values())} |"
    yield f"|---|---|---|---:|{'---:|' * len(_PLACES)}"
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for one in json.loads((root / "docs_site" / "ecosystem.json").read_text()):
        rows[one["product"], one["version"], one["job"]].append(one)
    for (product, version, job), results in sorted(rows.items(), key=lambda row: row[0][0].lower()):
        expected = max(one["expected"] for one in results)
        counted = {one["place"]: _counted(one) for one in results}
        cells = " | ".join(counted.get(place, "-") for place in _PLACES)
        yield f"| {product} | {version} | {job} | {expected:,} | {cells} |"
    yield ""
    yield "Pathway's snapshots do not wait until its producer has written the records. If a broker dies, and Pathway is"
    yield "killed while its producer tries again, records are lost, with three brokers of Kafka too (975 of 6,000)."
