"""A program that is run by `test_connect`: a Connect server of this machine, its client, and a log through both."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(path: str) -> None:
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    frame = spark.read.format("seglog").option("subscribe", "t").option("keyEquals", "b").load(path)
    print("rows", frame.selectExpr("offset", "CAST(value AS STRING) AS value").collect())
    spark.sql(f"CREATE TEMPORARY VIEW t USING seglog OPTIONS (path '{path}')")
    print("count", spark.sql("SELECT count(*) FROM t").collect()[0][0])
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
