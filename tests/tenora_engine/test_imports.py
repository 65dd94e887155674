"""What each room of the engine needs: policy without torch, computation without the wire."""

from __future__ import annotations

import subprocess
import sys

import pytest

_BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Blocked())
import importlib
for module in {modules!r}:
    importlib.import_module(module)
"""


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [
        pytest.param(
            [
                "wire",
                "scheduler",
                "request",
                "kv.block_pool",
                "kv.prefix_cache",
                "lora.slots",
                "admission",
                "config",
                "speculation",
                "model.hf_config",
            ],
            {"torch", "numpy", "zmq", "sqlalchemy", "transformers"},
            id="policy",
        ),
        pytest.param(
            ["model.decoder", "model.weights", "kernels", "lora.weights"],
            {"zmq", "msgspec", "xgrammar", "transformers", "tenora_adapters"},
            id="computation",
        ),
        pytest.param(["link"], {"torch"}, id="socket"),
    ],
)
def test_rooms_import_without_what_they_do_not_need(modules: list[str], blocked: set[str]):
    program = _BLOCKED.format(blocked=blocked, modules=[f"tenora_engine.{module}" for module in modules])
    subprocess.run([sys.executable, "-c", program], check=True)
