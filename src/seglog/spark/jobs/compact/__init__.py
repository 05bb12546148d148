"""Compaction of one partition on all cores: `job` is the driver's side, `tasks` runs in Spark's workers."""

from seglog.spark.jobs.compact.job import CompactedPartition, CompactionResult, compact

__all__ = ["CompactedPartition", "CompactionResult", "compact"]
