"""Logs on disk: Kafka's directory format, read and written.

``formats``      the files of a log directory as bytes: names, layouts, encoders and decoders
``log``          the log of one partition: append, read, roll, flush, truncate, recover
``compaction``   of each key, the last record stays
``directory``    a log directory and the several directories of a broker
``adopt``        segments that a Spark job has written become part of logs
``offline``      scan, inspect, compare, verify and repair, without opening a directory
"""
