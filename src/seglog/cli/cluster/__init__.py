"""`seglog cluster`, `leaders` and `partitions`: several brokers, their replicas and their metadata store."""
