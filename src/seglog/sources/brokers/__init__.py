"""Reading through brokers: `source` finds partitions and their ends, `planning` divides them, and `task_reader` fetches
and decodes a task's ranges in a worker.
"""
