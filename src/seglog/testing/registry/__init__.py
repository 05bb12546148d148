"""A small schema registry for tests, beside a broker.

``state`` has the subjects, and is replayed from records; ``api`` answers requests of Confluent's REST API; ``topic``
reads and writes the records of ``_schemas``; ``server`` puts them together.
"""
