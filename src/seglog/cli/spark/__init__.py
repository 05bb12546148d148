"""`seglog spark`: the command line of the jobs in `seglog.spark.jobs`."""
