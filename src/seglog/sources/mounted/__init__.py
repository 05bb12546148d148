"""Reading through brokers, with sealed segments of a mounted log directory in place of fetches: `replica_files` reads
what a directory says about itself, `coverage` decides which offsets are the leader's own, `planning` divides them, and
`task_reader` reads them in a worker, which goes to the broker at the first doubt.
"""
