"""Keyed tables: the newest value of each key of a topic, kept up by rewriting the buckets of keys that changed.

`building` makes a run, `changed_rows` divides the log's news by bucket, `bucket_merge` merges them with a bucket's old
rows, both in bounded memory. `compaction_guard` refuses to continue where tombstones may be gone, and `tombstone_age`
(pure) decides that. `frame` merges a table with the log's tail in Spark.
docs/decisions/0028-a-keyed-table-rewrites-buckets.md says why.
"""
