"""Other tables over the same records (option ``view``): batches, segments, and the records of Kafka's own topics.

`latest` has the newest record of each key.
"""
