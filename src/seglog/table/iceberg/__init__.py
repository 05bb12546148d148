"""The table that lists the files: `log_table` reads and commits it.

`layout` names its files, which are in a directory or an `object_store`; one of `catalogs` says which version is the
current one; `positions` say up to which offset that is. `time_range` finds the files that have records of a time,
`key_buckets` those that have a key. `synced_file_io` is how pyiceberg writes.
"""
