"""A bucket in a server that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    """Of a bucket in a server in this process, behind a real socket; `prefix` is to be filled in."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "x")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="blobs")
        yield f"s3://blobs/{{prefix}}?endpoint={endpoint}&region=us-east-1"
    server.stop()
