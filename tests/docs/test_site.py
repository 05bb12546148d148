"""The site that `make docs` generates is complete, and the generated parts of the pages are current."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from docs_site import chart, client_options, layouts
from docs_site.compatibility import compatibility
from docs_site.pages import gather
from docs_site.permissions import permissions
from docs_site.spark_options import write_tables
from seglog.cli.main import COMMANDS, GROUPS
from seglog.client.client_config import CLIENT_SETTINGS
from seglog.client.security.security_config import SECURITY_SETTINGS
from seglog.core.broker_config import BROKER_KEYS
from seglog.protocol.apis import APIS, name_of
from seglog.sources.options import read_options
from tests.clients.results import SUBJECTS, Tried
from tests.clients.results import record as record_clients
from tests.clients.versions import CLIENTS, OTHERS
from tests.ecosystem.results import ProductResult, record
from tests.kafka.jars import BEFORE

_ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "docs"
    gather(_ROOT, target)
    return target


def test_layouts_in_the_page_are_drawn_from_the_code() -> None:
    page = (_ROOT / "docs" / "formats.md").read_text()
    assert layouts.redraw(page) == page, "run: python -m docs_site --write"
    assert set(re.findall(r"<!-- drawn: (\S+) -->", page)) == set(layouts.DRAWINGS)


def test_permissions_are_those_of_the_table() -> None:
    page = (_ROOT / "docs" / "permissions.md").read_text()
    assert permissions() == page, "run: python -m docs_site --write"


def test_chart_has_every_figure() -> None:
    rows = chart.bars((_ROOT / "docs" / "benchmarks.md").read_text())
    texts = [element.text or "" for element in ET.fromstring(chart.svg(rows)).iter()]
    assert all(row.text in texts for row in rows)


def test_navigation_names_exactly_the_pages_that_are_gathered(site: Path) -> None:
    named = set(re.findall(r"(\S+\.md)$", (_ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {str(path.relative_to(site)) for path in site.rglob("*.md")} - _decisions(site)


def _decisions(site: Path) -> set[str]:
    return {f"decisions/{path.name}" for path in (site / "decisions").glob("0*.md")}


def test_every_decision_is_listed(site: Path) -> None:
    listed = (site / "decisions" / "index.md").read_text()
    assert [name for name in sorted(_decisions(site)) if f"({name.removeprefix('decisions/')})" not in listed] == []


def test_links_between_pages_lead_to_pages(site: Path) -> None:
    broken = [
        f"{page.relative_to(site)}: {link}"
        for page in site.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert broken == []


def test_reference_names_every_command_key_and_api(site: Path) -> None:
    commands = (site / "reference-cli.md").read_text()
    names = [*COMMANDS, *(f"{group} {name}" for group, one in GROUPS.items() for name in one.commands)]
    assert [name for name in names if f" seglog {name}\n" not in commands] == []
    keys = (site / "reference-config.md").read_text()
    assert [key for key in BROKER_KEYS if f"`{key}`" not in keys] == []
    apis = (site / "compatibility.md").read_text()
    assert [name for name in map(name_of, APIS) if f" {name} |" not in apis] == []


def test_spark_page_has_the_tables_of_options() -> None:
    page = (_ROOT / "docs" / "spark.md").read_text()
    assert write_tables(page) == page, "run: python -m docs_site --write"
    assert re.findall(r"<!-- options: (\S+) -->", page) == [
        "read",
        "brokers",
        "stream",
        "write",
        "write-brokers",
        "values",
    ]
    ignored = [row.name for row in read_options.OPTIONS.values() if row.use == "none"]
    assert [name for name in ignored if f"`{name.split('.')[0]}" not in page] == []


def test_clients_page_has_the_tables_of_properties() -> None:
    page = (_ROOT / "docs" / "clients.md").read_text()
    assert client_options.write_tables(page) == page, "run: python -m docs_site --write"
    named = set(re.findall(r"^\| `([a-z0-9.]+)`", page, re.MULTILINE))
    assert {*CLIENT_SETTINGS, *SECURITY_SETTINGS} <= named


def test_compatibility_page_has_the_latest_results() -> None:
    page = (_ROOT / "docs" / "compatibility.md").read_text()
    assert compatibility(_ROOT) == page, "run: python -m docs_site --write"


def test_a_run_of_some_products_replaces_only_their_results(tmp_path: Path) -> None:
    path = _site_root(tmp_path) / "docs_site" / "ecosystem.json"
    record([ProductResult("A", "1", "copy", "one", 9, 9), ProductResult("B", "1", "copy", "one", 9, None)], path)
    record([ProductResult("A", "1", "copy", "three", 0, None), ProductResult("B", "1", "copy", "one", 9, 10)], path)
    rows = [line for line in compatibility(tmp_path).splitlines() if line.startswith(("| A ", "| B "))]
    assert rows == ["| A | 1 | copy | 9 | 9 | failed | - |", "| B | 1 | copy | 9 | 10 | - | - |"]


def test_results_with_an_older_kafka_are_marked(tmp_path: Path) -> None:
    root = _site_root(tmp_path)
    path = root / "docs_site" / "ecosystem.json"
    record([ProductResult(name, "1", "copy", "kafka", 9, 9) for name in "AB"], path)
    results = [{**one, "kafka": BEFORE} if one["product"] == "A" else one for one in json.loads(path.read_text())]
    path.write_text(json.dumps(results))
    rows = [line for line in compatibility(root).splitlines() if line.startswith(("| A ", "| B "))]
    assert rows == [f"| A | 1 | copy | 9 | - | - | 9 ({BEFORE}) |", "| B | 1 | copy | 9 | - | - | 9 |"]


def test_tests_of_clients_that_fail_are_counted(tmp_path: Path) -> None:
    """A run replaces the figures of what it tried, and only these; those of another version of the client go."""
    root = _site_root(tmp_path)
    path = root / "docs_site" / "clients.json"
    found = json.loads(path.read_text())
    found["aiokafka-0.8"]["version"] = "0.8.0"
    found["kafka-python"] = {**found["kafka-python"], "passed": dict.fromkeys(SUBJECTS.values(), 2)}
    del found["franz-go"]
    path.write_text(json.dumps(found))
    good = [
        *(Tried("kafka-python", subject, peer) for subject in ("groups", "errors") for peer in ("ours", "kafka")),
        Tried("aiokafka-0.8", "errors", "ours"),
        Tried("franz-go", "groups", "ours"),
    ]
    bad = [
        *(Tried("kafka-python", "groups", peer) for peer in ("ours", "kafka", "kafka")),
        Tried("kafka-python", "admin", "ours"),
        Tried("franz-go", "groups", "kafka"),
    ]
    record_clients(good, bad, path)
    cells = _cells(root, "| kafka-python | 3.")
    assert cells == ["2", "1 (1 failed, Kafka: 2 failed)", "0 (1 failed)", "1", "2", "2", "2"]
    assert _cells(root, "| aiokafka | 0.8.1") == ["-", "-", "-", "1", "-", "-", "-"]
    assert _cells(root, "| franz-go") == ["1 (Kafka: 1 failed)"]
    record_clients([Tried("kafka-python", subject, "ours") for subject in ("groups", "admin")], [], path)
    assert _cells(root, "| kafka-python | 3.") == ["2", "1", "1", "1", "2", "2", "2"]


def _site_root(path: Path) -> Path:
    """A root with the results of the repository."""
    (path / "docs_site").mkdir()
    for name in ("clients.json", "ecosystem.json", "kips.toml"):
        (path / "docs_site" / name).write_bytes((_ROOT / "docs_site" / name).read_bytes())
    return path


def _cells(root: Path, start: str) -> list[str]:
    """The cells of a client's row that have figures."""
    (row,) = (line for line in compatibility(root).splitlines() if line.startswith(start))
    return row.strip("| ").split(" | ")[2 : 2 + len(SUBJECTS)]


def test_tests_that_show_a_kip_exist() -> None:
    kips = tomllib.loads((_ROOT / "docs_site" / "kips.toml").read_text())["kip"]
    assert [name for kip in kips for name in kip.get("tests", ()) if not (_ROOT / name).exists()] == []


def test_every_client_has_passed_tests_of_every_subject() -> None:
    results = json.loads((_ROOT / "docs_site" / "clients.json").read_text())
    for name, client in CLIENTS.items():
        missing = set(SUBJECTS.values()) - results[name]["passed"].keys()
        assert missing == (set() if client.idempotent else {"transactions"}), name
    assert [name for name in OTHERS if "transactions" not in results[name]["passed"]] == []


def test_index_for_language_models_has_every_page(site: Path) -> None:
    index = (site / "llms.txt").read_text()
    assert [page.name for page in site.rglob("*.md") if f"({page.relative_to(site)})" not in index] == []
