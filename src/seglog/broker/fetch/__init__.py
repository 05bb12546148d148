"""Fetches of consumers and followers.

Begin with `fetch` (the handler) and `fetch_sessions` (KIP-227); `follower_fetch` serves replicas of other brokers, and
`cluster_peers` decides who is one.
"""
