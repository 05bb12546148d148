"""The views ``batches``, ``segments`` and ``group-offsets``: other tables over the same files (option ``view``)."""
