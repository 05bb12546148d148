"""Brokers, clusters and the machine around them, for every test; CONTRIBUTING.md shows which one to take.

`waiting.wait_until` waits for an event. `service.Service` runs from the beginning of a ``with`` to its end.
`broker_process.BrokerProcess` is `seglog serve` as a process, `cluster.SeglogCluster` several of them on one metadata
store. `network`, `disk` and `memory` are where they live: links that can be cut, disks that can be full, directories
that need no disk. Kafka's own servers are in `tests.kafka`, other people's clients in `tests.clients`.
"""
