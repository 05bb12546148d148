"""The generated pages, and the gathering of all pages into the directory that mkdocs builds from."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Final

import seglog
import seglog.spark
import seglog.table
import seglog.testing
from docs_site import chart
from seglog.cli.main import COMMANDS, GROUPS, main
from seglog.core.broker_config import BROKER_KEYS, REFUSED, default_text
from seglog.core.config import REFUSED_TOPIC_KEYS, TOPIC_KEYS
from seglog.core.kafka_broker_keys import kafka_only_keys
from seglog.core.settings import Setting

_TOP_LEVEL: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_JOBS: Final[Mapping[str, Sequence[str]]] = {
    "seglog.spark.jobs.ingest": ("Columns", "Input", "ingest"),
    **{f"seglog.spark.jobs.{name}": (name,) for name in ("compact", "diff", "dump", "verify")},
    "seglog.spark.tables.executor": ("SparkExecutor",),
    "seglog.table": seglog.table.__all__,
}
"""The public names of each job."""
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)


def gather(root: Path, target: Path) -> None:
    """Make ``target`` anew: all of ``root/docs``, the top-level pages, and the generated ones."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root / "docs", target)
    for name in _TOP_LEVEL:
        (target / name.lower()).write_text(_without_docs_paths((root / name).read_text()))
    for page in target.glob("*.md"):
        page.write_text(page.read_text().replace("](../", "](").replace("CONTRIBUTING.md)", "contributing.md)"))
    for name, text in generated(root).items():
        (target / name).write_text(text)
    (target / "llms.txt").write_text(llms(target))


def _without_docs_paths(text: str) -> str:
    return re.sub(r"\]\(docs/", "](", text)


def generated(root: Path) -> dict[str, str]:
    """Every generated page and picture, by its name under the site's root."""
    return {
        "reference-api.md": api(),
        "reference-cli.md": cli(),
        "reference-config.md": config(),
        "chart.svg": chart.svg(chart.bars((root / "docs" / "benchmarks.md").read_text())),
    }


def config() -> str:
    """Every configuration key, from the tables that parse them."""
    topics = [row for name, row in TOPIC_KEYS.items() if name not in REFUSED_TOPIC_KEYS]
    lines = [
        "# Configuration keys",
        "",
        "Names, ranges and defaults are Kafka 4.4's; keys that begin with `seglog.` are seglog's own. An unknown key",
        "is an error that names the nearest known one.",
        "",
        "## Topics",
        "",
        "Set them with `seglog topics create -c key=value`, `seglog configs alter`, or `create_topic(config=…)`.",
        "",
        *_table(sorted(topics, key=lambda row: row.name)),
        "",
        "Known but accepted only with their defaults, so that a configuration copied from Kafka passes: "
        + ", ".join(f"`{name}`" for name in sorted(REFUSED_TOPIC_KEYS))
        + ".",
        "",
        "## Brokers",
        "",
        "Put them into the file of `seglog serve --config`, or give them as `--set key=value`; the image takes them as",
        "`KAFKA_…` variables.",
        "",
        *_table(BROKER_KEYS.values()),
        "",
        "These keys of Kafka have no effect here. They are accepted if the value has Kafka's type, and described as in",
        "Kafka, so that a broker's configuration can be used unchanged: "
        + ", ".join(f"`{name}`" for name in sorted(kafka_only_keys()) if name not in REFUSED)
        + ".",
        "",
        "Refused, unless they have Kafka's default:",
        "",
        *(f"- `{name}`: {why}" for name, why in REFUSED.items()),
    ]
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Setting]) -> Iterator[str]:
    yield "| key | type | default | allowed | meaning |"
    yield "|---|---|---|---|---|"
    for row in rows:
        default = default_text(row)
        cells = (f"`{row.name}`", row.rule.type, f"`{default}`" if default else "", row.rule.allowed, row.doc)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def cli() -> str:
    """``--help`` of every command."""
    lines = ["# Commands", "", "Exit codes: 0 fine, 1 damage found, 2 wrong usage or an I/O error.", ""]
    for name in COMMANDS:
        lines += _help(name)
    for group, commands in GROUPS.items():
        lines += [f"## seglog {group}", "", commands.help, ""]
        for name in commands.commands:
            lines += _help(group, name)
    return "\n".join(lines)


def _help(*words: str) -> list[str]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        main([*words, "--help"])
    return [f"{'#' * (len(words) + 1)} seglog {' '.join(words)}", "", "```text", printed.getvalue().strip(), "```", ""]


def api() -> str:
    """The public names, each by a directive of mkdocstrings."""
    lines = ["# Python API", "", "What may change from release to release: [the promise](api-promise.md).", ""]
    public = {"seglog": seglog.__all__, "seglog.testing": seglog.testing.__all__, "seglog.spark": seglog.spark.__all__}
    for module, names in {**public, **_JOBS}.items():
        lines += [f"## {module}", ""]
        for name in sorted(set(names) - {"__version__"}):
            found = getattr(import_module(module), name)
            home = f"{found.__module__}.{found.__qualname__}"
            lines += [f"::: {home}", "    options:", f"      heading: {module}.{name}", ""]
    return "\n".join(lines)


def llms(site: Path) -> str:
    """An index of the site for language models, after llmstxt.org: a line for each page, with its first sentence."""
    lines = ["# seglog", "", "> Kafka's log in Python: storage engine, broker, replication, Spark source and sink.", ""]
    for page in sorted(site.rglob("*.md")):
        text = page.read_text()
        title = _TITLE.search(text)
        if title is not None:
            body = re.sub(r"^```.*?^```\n|^[|!<-].*$|^#.*$", "", text[title.end() :], flags=re.MULTILINE | re.DOTALL)
            first = re.split(r"(?<=[.:])\s", " ".join(body.split()), maxsplit=1)[0]
            lines.append(f"- [{title[1]}]({page.relative_to(site)}): {first}")
    return "\n".join(lines) + "\n"
