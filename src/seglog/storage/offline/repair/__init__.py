"""Repair of partitions and log directories: first a plan, then, if the operator wants it, the work.

Repair rebuilds files that are derived from the log. It sets header fields that no CRC covers if everything around
leaves one value only, and cuts off a torn tail. It loses records only with ``salvage``, and the plan names them. The
replaced files stay in ``.seglog/backup-…`` of the partition. A crash leaves every file old or new: repair again.
"""

from seglog.storage.offline.repair.repair_plan import RepairPlan, carry_out, lock_directory, plan_repair

__all__ = ["RepairPlan", "carry_out", "lock_directory", "plan_repair"]
