"""A topic's table as a DataFrame, with the log's tail: `frame`, and `keyed_frame` for a keyed one.

The table itself is `seglog.table`.
"""
