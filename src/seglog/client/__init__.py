"""Talking to brokers, ours and others."""
