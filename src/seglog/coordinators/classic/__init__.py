"""The classic protocol of groups (JoinGroup, SyncGroup). Pure.

Begin with `state` (the states and their transitions), then `group`; `membership` turns each request into a result.
"""
