"""Other tables over the same files: ``option("view", "batches" | "segments" | "group-offsets")``."""
