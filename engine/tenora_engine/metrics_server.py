"""`GET /metrics` for Prometheus, on a thread of its own: what the engine last said of itself, and counts by adapter."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tenora_engine.errors import StartError
from tenora_engine.lora.metrics import AdapterMetrics
from tenora_engine.wire import Status, Tier

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES: Final[Mapping[str, Callable[[Status], int]]] = {
    "running_sequences": lambda status: status.running,
    "waiting_sequences": lambda status: status.waiting,
    "load_tokens": lambda status: status.load_tokens,
    "kv_blocks": lambda status: status.kv_blocks_total,
    "kv_blocks_free": lambda status: status.kv_blocks_free,
}


def exposition(status: Status, metrics: AdapterMetrics) -> str:
    """In Prometheus' text format (version 0.0.4)."""
    return "".join(f"{line}\n" for line in _gauges(status, metrics.labels)) + metrics.exposition()


def _gauges(status: Status, labels: frozenset[str]) -> Iterator[str]:
    for name, read in _GAUGES.items():
        yield f"# TYPE tenora_engine_{name} gauge"
        yield f"tenora_engine_{name} {read(status)}"
    tiers = Counter(adapter.tier for adapter in status.adapters)
    yield "# HELP tenora_engine_adapters Adapters, by the fastest tier that they lie in."
    yield "# TYPE tenora_engine_adapters gauge"
    for tier in Tier:
        yield f'tenora_engine_adapters{{tier="{tier}"}} {tiers[tier]}'
    yield "# HELP tenora_engine_adapter_resident Where an adapter lies; of those that have a label in the counters."
    yield "# TYPE tenora_engine_adapter_resident gauge"
    for adapter in status.adapters:
        if adapter.digest in labels:
            yield f'tenora_engine_adapter_resident{{adapter="{adapter.digest}",tier="{adapter.tier}"}} 1'


class MetricsServer:
    def __init__(self, address: str, render: Callable[[], str]) -> None:
        """address: host:port. Raises StartError when it cannot be bound."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                body = render().encode()
                self.send_response(200)
                self.send_header("content-type", _CONTENT_TYPE)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass  # a scrape is no news

        host, colon, port = address.rpartition(":")
        try:
            self._server = ThreadingHTTPServer((host, int(port if colon else "")), Handler)
        except (OSError, ValueError, OverflowError) as error:
            raise StartError(f"cannot serve metrics on {address!r}: {error}") from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
