"""Values with types: bytes of keys and values as Arrow columns, decoded by schemas, and back.

``value_options``  the options that say how a column is read or written; ``schemas`` the texts of schemas
``registry``       a client of a schema registry; ``reader_schema`` chooses the schema that a query reads with
``framing``        what precedes a value: ids of schemas in several layouts
``column_decoder`` a column of bytes as a typed column, whatever schemas its values were written with
``batch_decoder``  record batches with typed keys and values; ``dead_letters`` keeps what cannot be decoded;
                   ``batch_encoder`` is the other direction
``avro``, ``json``, ``protobuf``  one format each

Nothing here knows where batches come from: scans of files, consumers and Spark's tasks all use it.
"""
