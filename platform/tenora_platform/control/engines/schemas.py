"""What travels over HTTP about engines."""

from __future__ import annotations

from pydantic import Field

from tenora_platform.control.fields import View


class EngineView(View):
    """A replica, as a gateway last heard of it."""

    engine_id: str
    base_fingerprint: str
    build: str
    max_model_len: int = Field(description="Tokens, prompt and completion together.")
    block_size: int = Field(description="Tokens in a KV block.")
    kv_blocks_total: int
    kv_blocks_free: int
    running: int
    waiting: int
    load_tokens: int = Field(description="Tokens still to compute for all accepted requests.")
    adapters: list[str] = Field(description="Digests of the adapter versions it holds.")
    draining: bool


class EngineList(View):
    items: list[EngineView]
    next: None = None
