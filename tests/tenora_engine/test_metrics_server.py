"""What Prometheus gets from an engine that serves."""

from __future__ import annotations

import re
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from engine_under_test import World, prompt
from gateway_double import GatewayDouble
from test_aborts import serving

from tenora_engine.errors import StartError
from tenora_engine.metrics_server import MetricsServer

LINE = re.compile(r'(?P<name>[a-z_]+(\{[a-z]+="[a-z0-9]+"(,[a-z]+="[a-z]+")?\})?) (?P<value>[0-9.e-]+)')


def scrape(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    samples = [LINE.fullmatch(line) or pytest.fail(line) for line in lines if not line.startswith("# ")]
    assert len({sample["name"] for sample in samples}) == len(samples), "a series twice"
    return {sample["name"]: float(sample["value"]) for sample in samples}


def test_a_scrape(world: World):
    digest = world.digests["r8"]
    with serving(world, metrics="127.0.0.1:0") as server:
        assert server._metrics is not None
        port = server._metrics.port
        gateway = GatewayDouble(server._link.address)
        gateway.hello()
        for number in range(2):
            gateway.submit(f"request-{number}", prompt(9), adapter=digest, max_tokens=5)
            gateway.result(f"request-{number}")
        gateway.quiet_status()
        found = scrape(port)
        assert found["tenora_engine_running_sequences"] == 0
        assert found["tenora_engine_kv_blocks_free"] == found["tenora_engine_kv_blocks"] > 0
        assert found['tenora_engine_adapters{tier="device"}'] == 1
        assert found[f'tenora_engine_adapter_resident{{adapter="{digest}",tier="device"}}'] == 1
        assert found[f'tenora_engine_adapter_hits_total{{adapter="{digest}",tier="absent"}}'] == 1
        assert found[f'tenora_engine_adapter_hits_total{{adapter="{digest}",tier="device"}}'] == 1
        assert found[f'tenora_engine_adapter_requests_total{{adapter="{digest}"}}'] == 2
        assert found[f'tenora_engine_adapter_prompt_tokens_total{{adapter="{digest}"}}'] == 18
        assert found[f'tenora_engine_adapter_completion_tokens_total{{adapter="{digest}"}}'] == 10
        assert found[f'tenora_engine_adapter_load_seconds_total{{adapter="{digest}"}}'] > 0
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{port}/")
        gateway.close()


@pytest.mark.parametrize("address", ["9100", "127.0.0.1:", "127.0.0.1:99999", "192.0.2.1:9100", "nowhere"])
def test_an_address_that_cannot_be_bound_is_told(address: str):
    with pytest.raises(StartError, match="metrics"):
        MetricsServer(address, str)
