"""Avro: ``schema`` parses schemas, ``layout`` maps them to Arrow, ``program`` resolves a writer's schema with the
reader's into instructions, ``kernels`` runs these over the bytes of many values, and ``format`` puts it together."""
