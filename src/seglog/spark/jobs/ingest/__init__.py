"""Files into a topic, exactly once: `job` plans and commits, `splits`, `rows` and `columns` run in Spark's workers."""

from seglog.spark.jobs.ingest.columns import Columns
from seglog.spark.jobs.ingest.job import IngestResult, Input, ingest

__all__ = ["Columns", "IngestResult", "Input", "ingest"]
