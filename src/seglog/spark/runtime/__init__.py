"""Spark's processes as seglog meets them: session and Java, the driver of a planning process, a worker's mounts."""
