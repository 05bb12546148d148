"""The consumer protocol (KIP-848). Pure parts: `assignors`, `metadata_hash`, `patterns`."""
