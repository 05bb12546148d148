"""A program that is run by `test_connect`: a client of a Connect server, and a log through it."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(server: str, path: str) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
    frame = spark.read.format("seglog").option("subscribe", "t").option("keyEquals", "b").load(path)
    print("rows", frame.selectExpr("offset", "CAST(value AS STRING) AS value").collect())
    spark.sql(f"CREATE TEMPORARY VIEW t USING seglog OPTIONS (path '{path}')")
    print("count", spark.sql("SELECT count(*) FROM t").collect()[0][0])
    spark.sql(f"CREATE TEMPORARY VIEW o (value STRING) USING seglog OPTIONS (path '{path}', topic 'o')")
    spark.sql("INSERT INTO o SELECT 'v'")
    spark.sql("SELECT 'w' AS value").writeTo("o").append()
    print("written", spark.read.format("seglog").option("subscribe", "o").load(path).count())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
