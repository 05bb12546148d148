"""Protobuf: ``compiler`` makes descriptors of schemas as texts, ``layout`` maps messages to Arrow, and ``format`` reads
and writes values with the runtime of Google's library."""
