"""Rows of the views: batches and segments, the ranges of a plan, and records of Kafka's own topics, decoded."""
