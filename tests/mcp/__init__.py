"""Tests of `seglog mcp`."""
