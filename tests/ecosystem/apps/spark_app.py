"""`spark_app.py BOOTSTRAP CHECKPOINT`: Spark's Kafka connector copies "lines" to "copies", until it is killed."""

import sys

from pyspark.sql import SparkSession

from tests.kafka.connector import connector_config

bootstrap, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for key, value in {**connector_config(), "spark.driver.memory": "640m", "spark.log.level": "ERROR"}.items():
    builder = builder.config(key, value)
lines = (
    builder.getOrCreate()
    .readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", "lines")
    .option("startingOffsets", "earliest")
    .load()
)
copy = (
    lines.select("key", "value")
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "copies")
    .option("checkpointLocation", checkpoint)
    .start()
)
copy.awaitTermination()
