"""Appends that clients and Spark's tasks ask for.

Begin with `produce` (the handler), `produce_checks` (why a batch is refused) and `delayed_produce` (acks=all);
`segment_adoption` takes over whole segments of a task on the same machine.
"""
