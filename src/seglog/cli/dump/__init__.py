"""`seglog dump`: its options, the text of each kind of file as Kafka prints it, JSON, decoders of keys and values."""
