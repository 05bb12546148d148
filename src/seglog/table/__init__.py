"""A table: Parquet files of a topic's records, and an Iceberg table over them, wherever the records come from.

`column_types` has the types of columns, `evolution` their changes, `pinned_formats` how keys and values are decoded.
`layout` names the files, `positions` says up to which offset the table is, `record_files` writes Parquet, `day_files`
for each day, `time_range` says which files have records of a time, `log_table` commits to one of `catalogs`,
`object_store` has the files if no directory has, `small_files` says which files to rewrite, `maintenance` rewrites them
and deletes what no snapshot names, `delta_log` follows for readers of Delta.
`key_buckets` tells which file has which keys in a keyed table.
`building` makes a run, which adds the new records of a log: `log_survey` says what the log has, `continuation` where
the run starts and how ranges share files, `record_decoding` what becomes of keys and values.
docs/decisions/0026-a-table-is-one-set-of-parquet-files.md and 0028-a-keyed-table-rewrites-buckets.md say why.
"""
