from seglog.core.types import Buffer

BLOCKSIZE_MAX64KB: int

def compress(
    data: Buffer,
    *,
    compression_level: int = 0,
    block_size: int = 0,
    content_checksum: bool = False,
    block_linked: bool = True,
    store_size: bool = True,
    auto_flush: bool = True,
    block_checksum: bool = False,
) -> bytes: ...
def decompress(data: Buffer, return_bytearray: bool = False, return_bytes_read: bool = False) -> bytes: ...
