"""Logs on disk: Kafka's directory format, read and written."""
