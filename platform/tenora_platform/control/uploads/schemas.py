"""What travels over HTTP about uploads."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from tenora_platform.control.adapters.receiving import MAX_PARTS, is_plain_name
from tenora_platform.control.failures import FailureDetail
from tenora_platform.control.fields import Body, Id, View


def _plain_name(value: str) -> str:
    if not is_plain_name(value):
        raise ValueError("must be a plain name, without a path")
    return value


class UploadFile(Body):
    filename: Annotated[str, Field(max_length=200), AfterValidator(_plain_name)]
    size: Annotated[int, Field(ge=1, le=2**50, description="Bytes.")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="Of the file. Checked at the end; null is not checked."
    )


class NewUpload(Body):
    """An upload's bytes are its files, one after another in this order."""

    name: Annotated[str, Field(max_length=1024, description="Again the same name: its next version.")]
    base_model: Annotated[str, Field(max_length=1024)] | None = Field(
        default=None, description="May be left out where there is only one."
    )
    confirm_base: bool = Field(
        default=False, description="That an adapter whose config names no base model was made for this one."
    )
    promote: bool = Field(default=True, description="Whether the name serves it as soon as it is ready.")
    files: Annotated[list[UploadFile], Field(min_length=1, max_length=MAX_PARTS)] = Field(
        description="One zip or tar, or adapter_config.json and adapter_model.safetensors."
    )


class UploadStatus(StrEnum):
    RECEIVING = "receiving"
    FINISHING = "finishing"
    FINISHED = "finished"
    REFUSED = "refused"


class UploadView(View):
    id: Id
    name: str
    base_model: str | None
    confirm_base: bool
    promote: bool
    files: list[UploadFile]
    size: int = Field(description="Bytes of all files together.")
    offset: int = Field(description="How many of them have arrived: where to go on.")
    status: UploadStatus
    max_chunk_bytes: int
    created_at: datetime
    expires_at: datetime = Field(description="When it is dropped. Every chunk puts it off.")
    adapter_id: Id | None = Field(description="What it has become, once finished.")
    version_id: Id | None
    error: FailureDetail | None = Field(description="Why it was refused: what finish answered.")
