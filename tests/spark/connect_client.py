"""A program that is run by `test_connect`: a client of a Connect server, and a log through it."""

from __future__ import annotations

import sys

from pyspark.errors import PySparkException
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
    for wrong in (
        "INSERT OVERWRITE o SELECT 'x'",
        f"CREATE TABLE made USING seglog OPTIONS (path '{path}', topic 'o') AS SELECT 'x' AS value",
        f"CREATE TABLE made USING seglog OPTIONS (path '{path}', subscripe 'o')",
    ):
        print("refused", _refusal(spark, wrong))
    print("made", spark.catalog.tableExists("made"))
    spark.stop()


def _refusal(spark: SparkSession, statement: str) -> str:
    """The first line of the error, and whether it has frames of Python."""
    try:
        spark.sql(statement).collect()
    except PySparkException as error:
        text = str(error)
        return f"{text.splitlines()[0]} {'File' in text}"
    return "nothing"


if __name__ == "__main__":
    main(*sys.argv[1:])
