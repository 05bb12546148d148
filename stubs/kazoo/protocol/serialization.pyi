from typing import NamedTuple

class Watch(NamedTuple):
    type: int
    state: int
    path: str
    @classmethod
    def deserialize(cls, data: bytes, offset: int, /) -> tuple[Watch, int]: ...
