"""The engine process: takes what gateways send, steps the core, tells them the news."""

from __future__ import annotations

import gc
import logging
import secrets
import signal
import time
from collections.abc import Callable
from importlib.metadata import version
from queue import Empty, SimpleQueue

from tenora_engine.assemble import Engine, build_engine
from tenora_engine.config import EngineConfig
from tenora_engine.link import Aborted, AdapterReady, Event, GatewayGone, Link, Submitted, Terminate
from tenora_engine.metrics_server import MetricsServer, exposition
from tenora_engine.wire import HEARTBEAT_S, Status, Step

log = logging.getLogger(__name__)


class Server:
    """Runs until asked to end; `serve` is what the process calls."""

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Binds the socket first, so that a taken address is told at once, then loads the model. Raises StartError."""
        self._config = config
        self._clock = clock
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._instance_id = secrets.token_hex(8)
        self._build = f"tenora-{version('tenora')}"  # read here: it is a file's, and a status is made in every step
        self._link = Link(config.listen, self._instance_id, self._inbox, clock)
        self._engine: Engine = build_engine(config, wake=lambda: self._inbox.put(AdapterReady()), clock=clock)
        self._last_status = self._status()
        self._metrics = None if config.metrics is None else MetricsServer(config.metrics, self._render_metrics)
        self._drain_until: float | None = None

    def terminate(self) -> None:
        """Ask the server to end: once to let running requests end first, twice to abort them. Signal-safe."""
        self._inbox.put(Terminate())

    def run(self) -> None:
        core = self._engine.core
        self._link.publish(self._last_status)
        self._link.start()
        log.info("engine %s listens on %s", self._config.engine_id, self._link.address)
        try:
            while not (core.draining and not core.has_requests):
                self._take_events(wait=core.idle)
                self._end_overdue_drain()
                for route, news in core.step().items():
                    self._link.send(route, Step(self._instance_id, news.outputs, news.failures))
                self._last_status = self._status()
                self._link.publish(self._last_status)
        finally:
            self._link.close()
            if self._metrics is not None:
                self._metrics.close()
            self._engine.close()
        log.info("engine %s has ended", self._config.engine_id)

    def _take_events(self, *, wait: bool) -> None:
        """All that has arrived. With `wait`, sleep until something does, or a heartbeat's time has passed."""
        try:
            self._take(self._inbox.get(block=wait, timeout=HEARTBEAT_S))
            while True:
                self._take(self._inbox.get_nowait())
        except Empty:
            return

    def _take(self, event: Event) -> None:
        core = self._engine.core
        match event:
            case Submitted(route, submit):
                core.submit(submit, route)
            case Aborted(route, request_id):
                core.abort(route, request_id)
            case GatewayGone(route):
                core.abort_route(route)
            case AdapterReady():
                pass  # the step collects it
            case Terminate():
                self._drain()

    def _drain(self) -> None:
        core = self._engine.core
        if core.draining:
            core.abort_all()
            return
        log.info("draining: running requests have %.0f s to end", self._config.drain_s)
        core.drain()
        self._drain_until = self._clock() + self._config.drain_s
        self._link.announce(self._status())

    def _end_overdue_drain(self) -> None:
        if self._drain_until is not None and self._clock() >= self._drain_until:
            self._engine.core.abort_all()

    def _render_metrics(self) -> str:
        return exposition(self._last_status, self._engine.core.residency.metrics)

    def _status(self) -> Status:
        core, cache = self._engine.core, self._engine.cache
        load = core.load
        return Status(
            engine_id=self._config.engine_id,
            instance_id=self._instance_id,
            base_fingerprint=core.capacity.base_fingerprint,
            build=self._build,
            max_model_len=core.capacity.max_model_len,
            block_size=cache.block_size,
            kv_blocks_total=cache.pool.num_blocks,
            kv_blocks_free=cache.pool.num_free,
            running=load.running,
            waiting=load.waiting,
            load_tokens=load.tokens,
            max_waiting=core.max_waiting,
            adapters=core.residency.residents(),
            draining=core.draining,
        )


def serve(config: EngineConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError."""
    server = Server(config)
    # What the start has made lives as long as the process. A full collection of garbage would look at all of it each
    # time, and hold up every stream for as long (measured: 125 ms).
    gc.collect()
    gc.freeze()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.terminate())
    server.run()
