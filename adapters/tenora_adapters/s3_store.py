"""Blobs in a bucket of an S3-compatible store. Needs the extra `s3`.

    s3://bucket/prefix?endpoint=https://store.example:9000&region=eu-central-1

Endpoint, region and prefix may be left out. Credentials come the way boto3 finds them: the environment
(`AWS_ACCESS_KEY_ID` ...), its files, or the machine's role; never from the URL, which ends up in logs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, BinaryIO, Final
from urllib.parse import SplitResult, parse_qs

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tenora_adapters.blobs import BlobError, BlobNotFound, BlobUnavailable, checked_key

_OPTIONS: Final = frozenset({"endpoint", "region"})
# Retries with back-off are boto3's; threads of its own would multiply the connections of a worker for little.
_CONFIG: Final = Config(retries={"mode": "standard", "max_attempts": 5}, connect_timeout=5, read_timeout=60)
_TRANSFER: Final = TransferConfig(use_threads=False)
_NOT_THERE: Final = frozenset({"404", "NoSuchKey", "NoSuchUpload"})


class S3Store:
    """Objects below `prefix`. An object appears whole or not at all, large ones by S3's multipart upload."""

    def __init__(self, url: SplitResult) -> None:
        """Nothing connects yet. Raises BlobError on an option that there is not, or a URL without a bucket."""
        options = {name: values[-1] for name, values in parse_qs(url.query).items()}
        for unknown in sorted(options.keys() - _OPTIONS):
            raise BlobError(f"unknown option of an S3 blob store: {unknown!r}")
        if not url.hostname or url.username or url.password or url.port:
            raise BlobError("an S3 blob store is s3://bucket/prefix, without credentials")
        prefix = url.path.strip("/")
        self._bucket, self._prefix = url.hostname, f"{checked_key(prefix)}/" if prefix else ""
        with _named("connect to", self._bucket):
            self._s3: Any = boto3.client(
                "s3", endpoint_url=options.get("endpoint"), region_name=options.get("region"), config=_CONFIG
            )

    def put(self, key: str, source: BinaryIO) -> int:
        counted = _Unclosed(source)
        with _named("write", key):
            self._s3.upload_fileobj(counted, self._bucket, self._name(key), Config=_TRANSFER)
        return counted.num_bytes

    def open(self, key: str) -> BinaryIO:
        """A copy in a temporary file: readers seek."""
        file: Any = tempfile.TemporaryFile()  # noqa: SIM115  # the caller's to close
        try:
            with _named("read", key):
                self._s3.download_fileobj(self._bucket, self._name(key), file, Config=_TRANSFER)
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file  # type: ignore[no-any-return]

    def keys(self, folder: str) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2")
        with _named("list", folder):
            found = [
                item["Key"].removeprefix(self._prefix)
                for page in pages.paginate(Bucket=self._bucket, Prefix=self._name(folder) + "/")
                for item in page.get("Contents", ())
            ]
        return sorted(found)

    def delete(self, key: str) -> None:
        with _named("delete", key):
            self._s3.delete_object(Bucket=self._bucket, Key=self._name(key))

    def sweep(self, before: datetime) -> int:
        pages = self._s3.get_paginator("list_multipart_uploads")
        with _named("list uploads of", self._bucket):
            left = [
                {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix)
                for upload in page.get("Uploads", ())
                if upload["Initiated"] < before
            ]
        for upload in left:
            with suppress(BlobNotFound), _named("abort an upload of", upload["Key"]):
                self._s3.abort_multipart_upload(Bucket=self._bucket, **upload)
        return len(left)

    def _name(self, key: str) -> str:
        return self._prefix + checked_key(key)


class _Unclosed:
    """What boto3 may read from, and count, but not close: it is the caller's."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self.num_bytes = source, 0

    def read(self, size: int = -1) -> bytes:
        """Less than `size` at the end alone: boto3 takes a short read for the end."""
        data = self._source.read(size)
        while 0 < len(data) < size and (more := self._source.read(size - len(data))):
            data += more
        self.num_bytes += len(data)
        return data


@contextmanager
def _named(action: str, key: str) -> Iterator[None]:
    """What goes wrong in the store, in the port's errors."""
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code"))
        if code in _NOT_THERE:
            raise BlobNotFound(key) from error
        raise BlobUnavailable(f"cannot {action} {key}: {code}") from error
    except (BotoCoreError, S3UploadFailedError) as error:
        raise BlobUnavailable(f"cannot {action} {key}: {type(error).__name__}") from error
