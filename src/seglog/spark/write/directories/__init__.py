"""Writing to a log directory: tasks stage segments (`task_writer`), and one process, which has the directory open,
adopts all segments of a job or none (`commit_coordinator`; `commit_client` talks to it).
"""
