"""Compaction of one partition on all cores: `job` is the driver's side, `tasks` runs in Spark's workers."""

from seglog.spark.jobs.compact.job import Compacted, CompactedPartition, compact

__all__ = ["Compacted", "CompactedPartition", "compact"]
