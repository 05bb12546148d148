"""`seglog fsck`: verifies the replicas of a cluster, compares them, and restores damaged batches from each other.

Two replicas need not be visible to one process. `replica_reads` are the functions that run where a log directory is;
their arguments and results are small, and can be pickled. `check` runs on one machine and asks for them through a
`PlaceRunner`: `run_here`, or Spark's executors (`seglog.spark.jobs.fsck`). Replicas are compared by the chains over
the headers of some batches at a time (`blocks`). Only where these differ are records read.
"""
