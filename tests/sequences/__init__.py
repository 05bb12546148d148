"""Generated sequences of requests for a real Kafka and for ours, and what of the answers must be the same."""
