"""Files of CSV, JSON lines, Parquet and text as records, for `seglog.spark.jobs.ingest`.

`splits` divides files among tasks, `split_reader` reads one, `columns` and `json_text` make records of its rows, and
`marks` tells which bytes are new.
"""
