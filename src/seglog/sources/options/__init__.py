"""The options of the source (`read_options`) and the sink (`write_options`), parsed and checked before anything runs.

`option` has the rows of both tables and the parsers of their texts; `docs/spark.md` is written from the tables.
`topic_pattern` translates Java's regular expressions. No module here does I/O.
"""
