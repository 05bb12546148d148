"""A topic's table in Spark: `frame` and `keyed_frame` read it, with the log's tail; `executor` builds it.

The table itself is `seglog.table`.
"""
