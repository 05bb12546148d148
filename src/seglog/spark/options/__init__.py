"""The options of the source (`read_options`) and the sink (`write_options`), parsed and checked before anything runs.

`values` parses the text of one option, `topic_pattern` translates Java's regular expressions. No module here does I/O.
"""
