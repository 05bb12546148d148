from collections.abc import Sequence
from typing import NamedTuple

class Id(NamedTuple):
    scheme: str
    id: str

class ACL(NamedTuple):
    perms: int
    id: Id

CREATOR_ALL_ACL: Sequence[ACL]
OPEN_ACL_UNSAFE: Sequence[ACL]
READ_ACL_UNSAFE: Sequence[ACL]

def make_acl(scheme: str, credential: str, read: bool = False, *, create: bool = False) -> ACL: ...
