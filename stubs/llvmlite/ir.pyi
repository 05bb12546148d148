from collections.abc import Sequence

class Type:
    def as_pointer(self) -> Type: ...

class IntType(Type):
    def __init__(self, bits: int) -> None: ...

class FunctionType(Type):
    def __init__(self, return_type: Type, args: Sequence[Type]) -> None: ...
