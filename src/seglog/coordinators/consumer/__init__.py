"""The consumer protocol (KIP-848). Pure.

Begin with `group`, then `membership`: a heartbeat becomes a `decision`. `target` has the assignment of the whole group,
`reconciliation` the way of one member to it. `classic_members` and `migration` are for groups of both protocols.
"""
