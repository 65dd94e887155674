"""The gateway as tests meet it: served by uvicorn on a real socket, with a database that tests arrange and read."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn
from sqlalchemy import select
from sqlalchemy.orm import sessionmaker

from tenora_platform.db.models import (
    Adapter,
    AdapterVersion,
    ApiKey,
    BaseModelRow,
    Quota,
    Tenant,
    UsageEventRow,
    VersionStatus,
)
from tenora_platform.db.session import PLATFORM, ScopedSession
from tenora_platform.gateway.app import create_app
from tenora_platform.gateway.server import uvicorn_options
from tenora_platform.keys import make_key
from tenora_platform.settings import Settings

FINGERPRINT = "f0" * 32
BASE = "toy"
CONTEXT = 256
SECRET = "a platform secret for tests"
# Tokens of more than one byte, as scripts use them. Texts are encoded byte by byte: there are no merges.
PIECES = (b"DEF", b"HI", b"Hello", b" ok", b" world", b"\xf0\x9f", b"END", b"<stop>", "語".encode())
SPECIALS = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'raise' %}{{ raise_exception('no such thing') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _byte_symbols() -> list[str]:
    from tenora_adapters.token_bytes import _ALPHABET

    by_byte = {byte: symbol for symbol, byte in _ALPHABET.items()}
    return [by_byte[byte] for byte in range(256)]


def write_toy_model(folder: Path) -> None:
    """A byte-level tokenizer and a chat template, and no weights."""
    symbols = _byte_symbols()
    vocabulary = {symbol: byte for byte, symbol in enumerate(symbols)}
    for piece in PIECES:
        vocabulary["".join(symbols[byte] for byte in piece)] = len(vocabulary)
    added = []
    for text in SPECIALS:
        added.append(
            {"id": len(vocabulary) + len(added), "content": text, "special": True, "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False}
        )  # fmt: skip
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "bos_token": None, "chat_template": TEMPLATE})
    )


def strict_json(text: str | bytes) -> Any:
    """Refuses NaN and Infinity, which Python's parser takes by default."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def contents(events: list[dict[str, Any]], choice: int = 0) -> list[str]:
    """The text deltas of one choice of a streamed chat."""
    choices = [c for event in events for c in event["choices"] if c["index"] == choice]
    return [c["delta"].get("content") or "" for c in choices]


@dataclass(frozen=True)
class Database:
    """The database as a test arranges and reads it."""

    url: str
    sessions: sessionmaker[ScopedSession]

    def session(self) -> ScopedSession:
        return self.sessions(scope=PLATFORM)

    def tenant(self, name: str | None = None, **quota: int | None) -> TenantOfTest:
        with self.session() as session, session.begin():
            tenant = Tenant(name=name or f"t-{uuid.uuid4().hex[:12]}", display_name="A tenant", timezone="UTC")
            session.add(tenant)
            session.flush()
            if quota:
                session.add(Quota(tenant_id=tenant.id, **quota))
            tenant_id = tenant.id
        return TenantOfTest(self, tenant_id, self.key(tenant_id))

    def key(self, tenant_id: uuid.UUID, *, expires_at: datetime | None = None, allowed: list[str] | None = None) -> str:
        new = make_key()
        with self.session() as session, session.begin():
            session.add(
                ApiKey(
                    tenant_id=tenant_id,
                    name="a key",
                    prefix=new.prefix,
                    key_sha256=new.sha256,
                    allowed_models=allowed,
                    expires_at=expires_at,
                )
            )
        return new.text


@dataclass(frozen=True)
class TenantOfTest:
    database: Database
    id: uuid.UUID
    key: str

    def adapter(self, name: str, *, digest: str | None = None, status: VersionStatus = VersionStatus.READY) -> str:
        """A new adapter, or the next version of one, which becomes the active one if it is ready; its digest."""
        digest = digest or uuid.uuid4().hex * 2
        with self.database.session() as session, session.begin():
            base_id = session.scalars(select(BaseModelRow.id).where(BaseModelRow.name == BASE)).one()
            mine = (Adapter.tenant_id == self.id, Adapter.name == name, Adapter.deleted_at.is_(None))
            adapter = session.scalars(select(Adapter).where(*mine)).one_or_none()
            if adapter is None:
                adapter = Adapter(tenant_id=self.id, base_model_id=base_id, name=name)
                session.add(adapter)
                session.flush()
            versions = session.scalars(select(AdapterVersion).where(AdapterVersion.adapter_id == adapter.id)).all()
            version = AdapterVersion(
                tenant_id=self.id,
                adapter_id=adapter.id,
                number=len(versions) + 1,
                digest=digest,
                size_bytes=1,
                status=status,
                report={},
            )
            session.add(version)
            session.flush()
            if status is VersionStatus.READY:
                adapter.active_version_id = version.id
        return digest

    def usage(self) -> list[UsageEventRow]:
        with self.database.session() as session:
            query = select(UsageEventRow).where(UsageEventRow.tenant_id == self.id).order_by(UsageEventRow.sequence)
            return list(session.scalars(query))

    def wait_for_usage(self, count: int = 1, timeout_s: float = 10.0) -> list[UsageEventRow]:
        deadline = time.monotonic() + timeout_s
        while len(rows := self.usage()) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(rows) == count, [row.outcome for row in rows]
        return rows


@dataclass(frozen=True)
class Served:
    url: str

    def post(self, key: str, path: str, body: dict[str, Any] | bytes, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key}", **headers}
        return httpx.post(f"{self.url}/v1/{path}", content=content, headers=headers, timeout=30)

    def get(self, key: str, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}/v1/{path}", headers={"authorization": f"Bearer {key}"}, timeout=30)

    def stream(self, key: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a streamed answer, each of them valid JSON in UTF-8. The last must be [DONE], or an error."""
        answer = self.post(key, path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        *lines, end = answer.content.decode("utf-8", errors="strict").split("\n\n")
        assert end == ""
        events = [line.removeprefix("data: ") for line in lines]
        assert events.count("[DONE]") == (events[-1] == "[DONE]")
        parsed = [strict_json(event) for event in events if event != "[DONE]"]
        assert (events[-1] == "[DONE]") != ("error" in parsed[-1])
        return parsed

    def client(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)


class GatewayServer:
    """`create_app` in uvicorn, in a thread with its own event loop."""

    def __init__(self, settings: Settings) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        options = {**uvicorn_options(), "log_config": None}
        self._server = uvicorn.Server(uvicorn.Config(create_app(settings), **options))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def start(self) -> Served:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert self._thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return Served(self.url)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()
