"""JSON: ``ddl`` and ``json_schema`` make Arrow types of schemas; ``format`` reads and writes values of such a type."""
