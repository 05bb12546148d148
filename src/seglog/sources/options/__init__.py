"""The options of a read (`read_options`), parsed and checked before anything runs.

`option` has the parsers of their texts; `docs/spark.md` is written from the tables. `topic_pattern` translates Java's
regular expressions. No module here does I/O.
"""
