"""Other people's clients, old and new, as processes that do what they are told: one program per client, one language.

A job is a JSON object, a line of standard input; what happens is told in JSON arrays, a line each of standard output,
the last of them ``["done"]``. The jobs (``do``) and what they tell:

``produce``    topic, and records or numbers: ``acked`` number, partition, offset; or ``refused`` number, error
``consume``    topic, starts, reset, count: ``record`` partition, offset, timestamp, key, value, headers; or ``error``
``member``     group, topic: ``assigned`` partitions, ``read`` and ``committed`` partition, offset; until ``stop``
``admin``      op and its arguments: ``result`` value; ``error``; or ``cannot``, where the client has no such call
``transact``   topic, commits (true, or false to abort): ``ended`` number, for each transaction of one record
``relay``      group, source, target, hold: ``relayed`` count, for each transaction of records that it copied with
               its group's offsets; after ``hold`` records, ``held`` within a transaction; until ``stop``

Errors are told as each client names them. The words ``stop`` and ``go`` on a line of their own are for a job that runs.
"""
