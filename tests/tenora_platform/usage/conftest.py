"""The gateway's database, which usage goes into."""

from __future__ import annotations

from gateway_fixtures import database, gateway_database, tenant, token_ids, toy_model, vocab_size

__all__ = ["database", "gateway_database", "tenant", "token_ids", "toy_model", "vocab_size"]
