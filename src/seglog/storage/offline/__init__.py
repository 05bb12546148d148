"""Reads, verifies and repairs log directories without opening them: they may be in use or damaged."""
