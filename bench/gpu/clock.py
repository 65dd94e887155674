"""How long something takes on the device, and what the device's memory can do."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Of one call, without the launching: many in a CUDA graph. On a CPU, of one call."""
    if device.type == "cuda":
        from triton.testing import do_bench_cudagraph

        return float(do_bench_cudagraph(run, return_mode="median")) / 1000
    return wall_seconds(run, 1, device)


def wall_seconds(step: Callable[[], object], count: int, device: torch.device) -> float:
    """Of each of `count` calls one after the other, as a host sees it that waits at the end only."""
    wait(device)
    began = time.perf_counter()
    for _ in range(count):
        step()
    wait(device)
    return (time.perf_counter() - began) / count


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Bytes per second that a copy within the device's memory reads and writes: what shares below are shares of."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds(lambda: target.copy_(source), device)


def cache_bytes(device: torch.device) -> int:
    """Of the device's last cache: what a timing should move a multiple of."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
