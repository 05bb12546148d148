"""A table: Parquet files of a topic's records, and an Iceberg table over them, wherever the records come from.

`layout` names the files, `positions` says up to which offset the table is, `record_files` writes Parquet, `log_table`
commits, `small_files` and `rewriting` keep the number of files down, `sweeping` deletes what no snapshot names.
docs/decisions/0026-a-table-is-one-set-of-parquet-files.md says why.
"""
