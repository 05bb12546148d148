"""Reading log directories: `partitions` finds them, `partition_files` looks into one, `survey` picks the replica and
the end offset of each partition, and `task_reader` reads a range of offsets in a worker.
"""
