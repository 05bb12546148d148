"""A partition with its role, and who waits for what in it."""
