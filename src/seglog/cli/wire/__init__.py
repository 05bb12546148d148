"""Commands for any Kafka broker: topics, configs, groups, records, produce, consume, perf; and what they share."""
