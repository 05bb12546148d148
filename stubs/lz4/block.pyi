from seglog.core.types import Buffer

class LZ4BlockError(Exception): ...

def compress(
    source: Buffer,
    mode: str = "default",
    acceleration: int = 1,
    compression: int = 9,
    store_size: bool = True,
    return_bytearray: bool = False,
) -> bytes: ...
def decompress(source: Buffer, uncompressed_size: int = -1, return_bytearray: bool = False) -> bytes: ...
