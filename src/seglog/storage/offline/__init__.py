"""Log directories read, verified and repaired without opening them: they may be in use, or damaged."""
