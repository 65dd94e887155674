"""An upload whose blobs lie in a bucket: from its first chunk to what an engine reads."""

from __future__ import annotations

import uuid
from typing import Any

import adapter_files as files
import pytest
from adapter_calls import blobs, check, url
from bucket_fixtures import s3_url
from fastapi.testclient import TestClient

from tenora_adapters.blobs import open_store
from tenora_engine.lora.files import StoreFiles
from tenora_platform.control.resources import Resources

__all__ = ["s3_url"]


def test_from_the_first_chunk_to_an_engine(
    admin: TestClient,
    resources: Resources,
    tenant: uuid.UUID,
    new_upload: Any,
    s3_url: str,  # the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, folder = s3_url.format(prefix="tenora"), resources.blobs
    monkeypatch.setitem(resources.__dict__, "blobs", open_store(bucket))
    upload = new_upload()
    half = len(upload.data) // 2
    for begin, end in ((0, half), (half, None)):
        assert upload.send(begin, end).status_code == 200
    finished = upload.finish()
    assert finished.status_code == 202, finished.text
    adapter, version = finished.json()["adapter"], finished.json()["version"]
    check(resources, version)
    assert admin.get(url(tenant, adapter["id"])).json()["active_version"]["status"] == "ready"

    read = StoreFiles(open_store(bucket)).read(version["digest"])
    assert (read.config, read.weights) == (files.config(), files.weights())
    assert open_store(bucket).keys("uploads") == [], "the chunks are gone"
    monkeypatch.undo()
    assert resources.blobs is folder
    assert blobs(resources) == set(), "nothing of it lies in the folder"
