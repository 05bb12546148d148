"""Verification: compare every byte of log directories, partitions and single files with all that is known of it.

Each log is cut into stretches of some MiB. Workers check stretches side by side: threads with compiled loops if
``seglog[fast]`` is installed and there is enough to check, otherwise processes. Verification changes nothing. A broker
may have the directory open: a write that is under way is at most a note.
"""

from seglog.storage.offline.verify.verifier import VerifyReport, measure, verify

__all__ = ["VerifyReport", "measure", "verify"]
