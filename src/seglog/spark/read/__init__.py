"""The readers that Spark calls for batches and streams, and the schemas that it sees.

`seglog.sources` plans and reads.
"""
