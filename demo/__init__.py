"""The main job, ``make demo``: 336,776 real flights through brokers, of which one is killed, and analysed by Spark."""
