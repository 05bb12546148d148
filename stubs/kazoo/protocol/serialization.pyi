from typing import NamedTuple

class Watch(NamedTuple):
    type: int
    state: int
    path: str
    @classmethod
    def deserialize(cls, data: bytes, offset: int, /) -> tuple[Watch, int]: ...

class SASL(NamedTuple):
    challenge: bytes
    @classmethod
    def deserialize(cls, data: bytes, offset: int, /) -> tuple[bytes | None, int]: ...

class ReplyHeader(NamedTuple):
    xid: int
    zxid: int
    err: int
