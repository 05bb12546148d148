"""`seglog mcp`: a log and a cluster as tools of the Model Context Protocol, which only read.

`command` is the command, `tools` the table of tools, `answers` keeps an answer within its limit (pure), and `server`
is the edge to the SDK. The facts come from the functions of `seglog.cli` and `seglog.console`, which are below.
"""
