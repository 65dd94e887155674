"""DoRA's row scale at its edges; that it is PEFT's elsewhere is shown by test_fidelity.py and test_generated.py."""

from __future__ import annotations

import torch

from tenora_engine.lora.dora import row_scale


def test_a_row_of_zeros_has_no_scale():
    """ADP-04: a padding token's row of the head; a length where there is no direction stays an error of the adapter."""
    weight, a, b = (
        torch.tensor([[3.0, 4.0], [0, 0], [0, 0], [0, 0]]),
        torch.ones(1, 2),
        torch.tensor([[0.0], [0], [1], [0]]),
    )
    magnitude = torch.tensor([10.0, 0, 0, 1])
    assert row_scale(weight, a, b, 1.0, magnitude).tolist() == [2.0, 0.0, 0.0, torch.inf]
