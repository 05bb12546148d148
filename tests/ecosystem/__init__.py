"""Other people's products, unmodified, on seglog and on Kafka: `make ecosystem`."""
