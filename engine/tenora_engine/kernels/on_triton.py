"""The operations as Triton kernels, and the projections as torch's own. Imports triton."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tenora_engine.kernels import REFERENCE, Kernels
from tenora_engine.kernels.attention_step import prepare_attention
from tenora_engine.kernels.lora_apply import prepare_lora
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.place_heads import place_heads
from tenora_engine.kernels.race import race
from tenora_engine.kernels.rowwise import add_rms_norm, gated

TRITON: Final[Kernels] = replace(
    REFERENCE,
    add_rms_norm=add_rms_norm,
    place_heads=place_heads,
    prepare_attention=prepare_attention,
    gated=gated,
    make_lora_slots=TableSlots,
    prepare_lora=prepare_lora,
    race=race,
)
