"""The console: one page that shows a log and a cluster in the browser, served by a process of its own.

`command` is `seglog console`, `server` its HTTP, `access` who may ask, `api` the table of operations and their OpenAPI
document. Behind the operations: `disk` (files), `byte_fields` (names of bytes, pure), `records` and `typed_values`,
`live` (brokers and groups over time), `changes` (what ``--write`` allows). ``static`` has the page.

The facts come from the functions that the commands print: `seglog.cli` is below this package.
"""
