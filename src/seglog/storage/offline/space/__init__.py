"""The space of partitions: `usage` by batch headers, `keys` by records, `recompression` by a sample of batches."""
