"""An object store with one bucket, in this process: moto's S3."""

from __future__ import annotations

import logging
from typing import Final

from moto.server import ThreadedMotoServer
from pyarrow.fs import S3FileSystem

from tests.kit.service import Service

BUCKET: Final = "flights-bucket"
SECRET: Final = "hunter2-of-the-store"
REGION: Final = "us-east-1"


class ObjectStoreServer(Service):
    """``with ObjectStoreServer() as store``."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)

    def start(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
        self._server.start()
        self.file_system(allow_bucket_creation=True).create_dir(BUCKET)

    def leave(self) -> None:
        self._server.stop()

    @property
    def port(self) -> int:
        return int(self._server.get_host_and_port()[1])

    @property
    def properties(self) -> dict[str, str]:
        """pyiceberg's, to reach it."""
        return store_properties(self.port)

    def file_system(self, *, allow_bucket_creation: bool = False) -> S3FileSystem:
        """To see the objects, under ``bucket/…``."""
        return S3FileSystem(
            access_key="user",
            secret_key=SECRET,
            region=REGION,
            endpoint_override=f"http://127.0.0.1:{self.port}",
            allow_bucket_creation=allow_bucket_creation,
        )


def store_properties(port: int) -> dict[str, str]:
    """pyiceberg's properties of a store at that port."""
    return {
        "s3.endpoint": f"http://127.0.0.1:{port}",
        "s3.access-key-id": "user",
        "s3.secret-access-key": SECRET,
        "s3.region": REGION,
    }
