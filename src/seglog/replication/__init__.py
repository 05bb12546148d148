"""Replicas of partitions: leaders, followers, and the requests that wait for them."""
