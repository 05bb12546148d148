"""The part of pyarrow.fs that seglog uses."""

from enum import Enum
from typing import overload

from pyarrow import NativeFile

class FileType(Enum):
    NotFound = ...

class FileInfo:
    @property
    def type(self) -> FileType: ...
    @property
    def base_name(self) -> str: ...

class FileSelector:
    def __init__(self, base_dir: str, allow_not_found: bool = ..., recursive: bool = ...) -> None: ...

class FileSystem:
    def open_input_stream(self, path: str) -> NativeFile: ...
    def open_output_stream(self, path: str) -> NativeFile: ...
    @overload
    def get_file_info(self, paths_or_selector: str) -> FileInfo: ...
    @overload
    def get_file_info(self, paths_or_selector: FileSelector) -> list[FileInfo]: ...
    def move(self, src: str, dest: str) -> None: ...
    def delete_file(self, path: str) -> None: ...
    def create_dir(self, path: str) -> None: ...

class S3FileSystem(FileSystem):
    def __init__(
        self,
        access_key: str,
        *,
        secret_key: str,
        region: str,
        endpoint_override: str,
        allow_bucket_creation: bool,
    ) -> None: ...
