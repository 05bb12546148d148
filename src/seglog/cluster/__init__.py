"""The shared metadata of a cluster: stores, registrations, the controller, and decisions about partitions."""
