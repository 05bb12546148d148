"""The command `seglog`. `main` has the table of commands; a command's module is imported only if it is run.

`offline`: commands on log directories. `dump`: `seglog dump`. `wire`: commands that talk to Kafka brokers. `cluster`:
commands on several brokers and their metadata store. `spark`: jobs on Spark. `serve`: a broker; `container`: the same
for an image.
"""
