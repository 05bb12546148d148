"""Jobs on Spark over whole log directories: each a function that takes a session and returns a small frozen result.

`seglog.spark.jobs.verify`, `dump`, `ingest`, `compact` and `diff`; from a shell ``seglog spark <job>``. Nothing is
imported before it is used.
"""
