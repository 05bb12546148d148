"""A log directory, and the several directories of a broker: topics, replicas, checkpoints. Begin with `log_dir.py`."""
