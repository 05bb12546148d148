"""The log of one partition: segments, indexes, producers, epochs, recovery, retention. Begin with `log.py`."""
