"""The main job, ``make demo``: 336,776 real flights into Kafka's own files, found again, and analysed by Spark."""
