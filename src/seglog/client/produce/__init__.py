"""Writing through brokers.

`batch_producer` sends ready batches, in the order that `partition_queue` keeps for each partition. `transaction` makes
the batches of one producer visible together. `group_mark` keeps a mark that one writer at a time can change.
"""
