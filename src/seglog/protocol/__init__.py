"""Bytes of requests and responses: framing, the table of APIs, messages over kio's classes. No I/O."""
