"""Compaction: `log_cleaner` chooses logs and replaces their segments, `cleaner` carries out one round.

`plain_cleaner` has the rules for a single batch; `compiled_cleaner` applies them in compiled loops. `parts` splits a
round for a cluster.
"""
