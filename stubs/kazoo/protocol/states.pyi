from typing import Final, NamedTuple

class KazooState:
    SUSPENDED: Final = "SUSPENDED"
    CONNECTED: Final = "CONNECTED"
    LOST: Final = "LOST"

class ZnodeStat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeralOwner: int
    dataLength: int
    numChildren: int
    pzxid: int
