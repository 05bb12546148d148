"""The bytes of batches and records, in all three formats, and nothing that touches a disk."""
