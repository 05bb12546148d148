from typing import Final

class KazooState:
    SUSPENDED: Final = "SUSPENDED"
    CONNECTED: Final = "CONNECTED"
    LOST: Final = "LOST"

class ZnodeStat:
    version: int
