"""The options of a read (`read_options`), parsed and checked before anything runs.

`rules` has what `seglog.core.settings` does not, also for the sink; `docs/spark.md` is written from the declarations.
`topic_pattern` translates Java's regular expressions. No module here does I/O.
"""
