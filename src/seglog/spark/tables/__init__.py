"""A topic's table: `building` adds new records of a log to it, `frame` gives it to Spark with the log's tail.

`continuation` decides where a run starts, and how ranges share files. The table itself is `seglog.table`.
"""
