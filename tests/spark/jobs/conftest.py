from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.cli.run import Run, run_here


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], spark: SparkSession) -> Run:
    """Runs a command, which takes the session that there is."""
    assert spark.version
    return run_here(capfdbinary)
