"""Everything a process of the platform reads from its environment (`TENORA_*`), in one place.

`tenora up` sets these for the parts it starts; in production the deployment does.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TENORA_", extra="ignore")

    home: Path = Path("~/.tenora")
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=1, le=65535)

    database_url: str = ""  # postgresql+psycopg://user:password@host:port/database
    redis_url: str = ""  # redis://:password@host:port/0
    blob_url: str = ""  # file:///folder, or s3://bucket/prefix (tenora_adapters/s3_store.py)
    engines: str = ""  # ZeroMQ addresses of the engines, separated by commas
    model: Path | None = None  # folder of the base model (Hugging Face layout)
    model_name: str = "smollm2-135m"  # the id tenants ask for
    model_accepts: str = ""  # what else adapters' configs may name as this base, separated by commas

    secret: SecretStr = SecretStr("")  # the platform's own: tenants' cache salts are derived from it
    admin_user: str = "admin"
    admin_password: SecretStr = SecretStr("")  # used once, to make the first administrator

    spool_dir: Path | None = None  # the gateway's usage journal; must survive a restart
    max_upload_bytes: int = 512 * 2**20
    max_uploads_per_tenant: int = 8  # that are unfinished, each of up to max_upload_bytes in the blob store
    max_uploads: int = 64  # of all tenants together
    max_body_bytes: int = 8 * 2**20
    max_pending_s: float = 20.0  # how long a request may wait for an engine to be there
    key_cache_s: float = 4.0  # upper bound on how long a lost revocation message can matter
    insecure_cookies: bool = True  # right for loopback; set to false where browsers reach the UI through TLS

    @property
    def engine_urls(self) -> list[str]:
        return _listed(self.engines)

    @property
    def model_accepted_names(self) -> list[str]:
        return _listed(self.model_accepts)


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


@cache
def settings() -> Settings:
    """This process's settings, read once. Raises pydantic.ValidationError naming what is wrong."""
    return Settings()
