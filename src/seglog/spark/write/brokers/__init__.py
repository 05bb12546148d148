"""Writing through brokers: `task_writer` produces the rows of a task, `task` says in which transaction, and `commit`
makes a job visible. `batch_mark` has the rules of exactly once, without I/O; `names` has the transactional ids.
"""
