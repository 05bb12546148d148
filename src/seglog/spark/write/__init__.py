"""Writing, wherever the records go: `sink` has the writers that Spark calls, `frames` prepares a DataFrame for them.

A place to write to is a package of its own, with the writer that tasks use and the commit of a job: `directories`.
"""
