"""Reading, wherever the records come from: offsets, plans of batches and streams, the readers that Spark calls.

`offsets`, `ranges`, `planning` and `stream_planning` are pure. A place to read from is a package of its own that finds
partitions and their offsets on the driver, and reads ranges of them in the workers: `directories`.
"""
