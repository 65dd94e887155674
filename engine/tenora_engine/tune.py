"""`tune`: measures the launch configurations for a model's shapes on the GPU at hand, and writes them to a table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tenora_engine.config import Dtype
from tenora_engine.kernels.launch_table import OWN_TABLE, merge, read_rows, target_of, write_rows
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.spec import UnsupportedModel

_DTYPES = {Dtype.BF16: torch.bfloat16, Dtype.FP32: torch.float32}


def main(arguments: Sequence[str]) -> int:
    """`tune --model FOLDER [--table FILE]`: a line for each row that is found. 0, or 1 with a message."""
    parser = argparse.ArgumentParser(prog="python -m tenora_engine tune", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model: its config.json is read")
    parser.add_argument("--table", type=Path, help=f"the table to write to; rows of other GPUs stay [{OWN_TABLE}]")
    parser.add_argument("--dtype", type=Dtype, choices=_DTYPES, default=Dtype.BF16, help="of the model")
    options = parser.parse_args(arguments)
    table = options.table or (Path(os.environ[OWN_TABLE]) if OWN_TABLE in os.environ else None)
    if table is None:
        parser.error(f"say where to write: --table FILE, or {OWN_TABLE}")
    try:
        spec = read_spec(options.model)
        rows = read_rows(table) if table.exists() else []
        if not torch.cuda.is_available():
            raise ValueError("torch sees no GPU here")
        write_rows(table, rows)  # before the work, so that a place that cannot be written is told now
    except (OSError, ValueError, TypeError, UnsupportedModel) as error:
        print(f"cannot tune: {error}", file=sys.stderr)
        return 1
    from tenora_engine.kernels.tune import Sizes, cases, on_device, tune  # imports triton

    device = torch.device("cuda")
    with torch.inference_mode():
        found = tune(cases(spec, _DTYPES[options.dtype], device, Sizes()), target_of(device), on_device, print)
    write_rows(table, merge(rows, found))
    print(f"{len(found)} rows for {target_of(device)} in {table}. The engine uses them with {OWN_TABLE}={table}")
    return 0
