"""The view ``latest``: the newest value of each key of a partition, as compaction would keep it.

`newest_rows` finds it in bounded memory, `source` reads ranges through it, `directory_history` and `broker_history`
refuse what compaction has made unknowable.
"""
