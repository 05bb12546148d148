from collections.abc import Iterator

class DefaultRecord:
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...

class DefaultRecordBatch:
    def __init__(self, buffer: bytes | bytearray | memoryview) -> None: ...
    def __iter__(self) -> Iterator[DefaultRecord]: ...
    def validate_crc(self) -> bool: ...

class DefaultRecordBatchBuilder:
    def __init__(
        self,
        magic: int,
        compression_type: int,
        is_transactional: bool,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        batch_size: int,
    ) -> None: ...
    def append(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> object: ...
    def build(self) -> bytearray: ...
