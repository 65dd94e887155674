"""A tenant, and an upload of the tiny adapter as the tests make them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from typing import Any

import adapter_files as files
import pytest
from fastapi.testclient import TestClient
from upload_fixtures import staging, tenant

__all__ = ["new_upload", "staging", "tenant"]

CONTENT = [("adapter_config.json", files.config()), ("adapter_model.safetensors", files.weights())]


class Upload:
    """One upload, by its URL."""

    def __init__(self, client: TestClient, tenant: uuid.UUID, content: list[tuple[str, bytes]], **given: Any) -> None:
        self.client = client
        self.data = b"".join(data for _, data in content)
        self.collection = f"/api/v1/tenants/{tenant}/uploads"
        announced = [
            {"filename": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in content
        ]
        self.created = client.post(self.collection, json={"name": "bot", "files": announced} | given)
        self.url = f"{self.collection}/{self.created.json().get('id')}"

    def send(self, begin: int, end: int | None = None, data: bytes | None = None) -> Any:
        headers = {"Upload-Offset": str(begin), "Content-Type": "application/octet-stream"}
        return self.client.patch(self.url, content=self.data[begin:end] if data is None else data, headers=headers)

    def finish(self) -> Any:
        return self.client.post(f"{self.url}/finish")

    def get(self) -> Any:
        return self.client.get(self.url)

    def cancel(self) -> Any:
        return self.client.delete(self.url)


MakeUpload = Callable[..., Upload]


@pytest.fixture
def new_upload(admin: TestClient, tenant: uuid.UUID) -> MakeUpload:
    def make(content: list[tuple[str, bytes]] | None = None, **given: Any) -> Upload:
        return Upload(admin, tenant, CONTENT if content is None else content, **given)

    return make
