"""Reads records of log directories, of brokers, or of both, as Arrow batches.

`options` has what a caller may ask for. `query` plans it: a `record_source` says which partitions there are, `offsets`
turns bounds into offsets, `planning` divides them into tasks, `stream_planning` those of a stream. `directories`,
`brokers` and `mounted` (a directory beside its brokers) are the sources, `latest` is one of the newest record of each
key, `views` makes rows of batches and of Kafka's own topics. `scan` is the door for programs.
docs/decisions/0031-one-room-for-reading.md says why.
"""
