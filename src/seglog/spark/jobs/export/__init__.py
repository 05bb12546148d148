"""Topics as Parquet, every record once: `job` plans, `files` writes in Spark's workers, `state` is the commit."""

from seglog.spark.jobs.export.job import ExportInUseError, ExportResult, export

__all__ = ["ExportInUseError", "ExportResult", "export"]
