"""From the log's records to Parquet: `file_task` is the task that a worker runs.

`record_decoding` makes keys and values columns, `record_times` checks timestamps; `record_files` writes a file, and
`day_files` one for each day.
"""
