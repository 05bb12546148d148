"""The counts of runs of the products: `docs_site/ecosystem.json`, which the compatibility page shows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.kafka.jars import CURRENT

__all__ = ["PATH", "ProductResult", "Report", "record"]

PATH: Final = Path(__file__).parents[2] / "docs_site" / "ecosystem.json"


class ProductResult(NamedTuple):
    """``expected`` and ``counted`` are numbers of records. More may be counted than expected if the product promises
    at least once; None: the job failed, and ``expected`` may be 0."""

    product: str
    version: str
    job: str
    place: str
    expected: int
    counted: int | None


class Report:
    """The report of one test about its product."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.result: ProductResult | None = None

    def of(self, product: str, version: str, job: str) -> None:
        """Call it first, so that a failure is reported too."""
        self.result = ProductResult(product, version, job, self._place, 0, None)

    def counted(self, expected: int, counted: int) -> None:
        assert self.result is not None
        self.result = self.result._replace(expected=expected, counted=counted)


def record(results: Iterable[ProductResult], path: Path = PATH) -> None:
    """Replace the results of the jobs and places that were run. All other results stay."""
    kept = {
        (one["product"], one["job"], one["place"]): one
        for one in (json.loads(path.read_text()) if path.exists() else [])
    }
    for result in results:
        version = CURRENT if result.place == "kafka" else None
        kept[result.product, result.job, result.place] = {**result._asdict(), "kafka": version}
    path.write_text(json.dumps([kept[key] for key in sorted(kept)], indent=2) + "\n")
