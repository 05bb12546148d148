"""What all brokers of a cluster share beyond records: small versioned values, who is alive, and who was told."""
