"""The topics of the cluster as this broker sees them, and their changes.

Begin with `topics` (the index that every request asks), then `topic_changes`. `directory_topics` has a broker without a
cluster.
"""
