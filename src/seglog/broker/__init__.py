"""Requests meet state: one module for each group of APIs, one place where exceptions become error codes."""
