"""Requests ended from outside at every stage, over the real socket: all that was taken is given back."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine_under_test import World, prompt
from gateway_double import GatewayDouble

from tenora_engine.config import Dtype, EngineConfig
from tenora_engine.server import Server
from tenora_engine.wire import Abort, FinishReason


@contextmanager
def serving(world: World, **options: int | bool) -> Iterator[Server]:
    """An engine server on a thread of this process."""
    with tempfile.TemporaryDirectory(prefix="tenora-test-") as folder:
        config = EngineConfig(
            listen=f"ipc://{folder}/engine.sock",
            model=world.model,
            blobs=f"file://{world.store.root}",
            dtype=Dtype.FP32,
            threads=1,
            drain_s=0.0,
            **options,
        )
        server = Server(config)
        thread = threading.Thread(target=server.run, name="server")
        thread.start()
        try:
            yield server
        finally:  # also when the test has failed, or its process would never end
            server.terminate()
            server.terminate()
            thread.join(30)
        assert not thread.is_alive()


def abort_at_random(world: World, count: int) -> None:
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    dice = random.Random(count)
    names = [None, "r1", "r4", "r8", "r64"]
    few = {"kv_blocks": 20, "max_sequences": 6, "max_batch_tokens": 24, "adapter_slots": 2, "host_adapters": 3}
    with serving(world, async_step=True, **few) as server:
        core, cache = server._engine.core, server._engine.cache
        gateway = GatewayDouble(server._link.address)
        gateway.hello()
        stages: Counter[str] = Counter()
        for index in range(count):
            request_id = f"request-{index}"
            tokens = prompt(dice.choice((3, 20, 60, 90)), dice.randrange(4))
            name = dice.choice(names)
            gateway.submit(request_id, tokens, adapter=name and world.digests[name], max_tokens=dice.randint(2, 60))
            wait_for = dice.choice(("nothing", "nothing", "a moment", "a token"))
            if wait_for == "a moment":
                gateway.pump(lambda: dice.random() < 0.5)
            elif wait_for == "a token":
                told = gateway.answers[request_id]
                gateway.pump(lambda told=told: told.num_terminal or told.tokens[0])
            if dice.random() < 0.9:
                gateway.send(Abort(request_id))
            if index % 50 == 49:  # a gateway that leaves with requests under way, without a word
                leaving = GatewayDouble(server._link.address)
                leaving.hello()
                for number in range(3):
                    leaving.submit(f"left-{number}", prompt(30, number), max_tokens=60)
                leaving.close(goodbye=dice.random() < 0.5)
        for request_id, answer in gateway.answers.items():
            gateway.pump(lambda answer=answer: answer.num_terminal)
            assert answer.num_terminal == 1, request_id
            assert answer.usage is not None
            assert answer.usage.completion == len(answer.tokens[0])
            aborted = answer.finish[0] is FinishReason.ABORT
            stages["aborted" if aborted else "complete"] += 1
            stages["aborted in mid-answer"] += aborted and answer.usage.completion > 0
            stages["aborted in its prompt"] += aborted and answer.usage.prompt > 0 and not answer.usage.completion
            stages["aborted in the queue"] += aborted and answer.usage.prompt == 0
        assert min(stages.values()) > count // 40, stages
        gateway.pump(lambda: gateway.quiet_status().kv_blocks_free == 20)
        gateway.close()
    assert not core.has_requests
    assert cache.pool.num_free == cache.pool.num_blocks
    assert core.residency.num_pins == 0
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)
        assert not thread.is_alive(), thread
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_thousand_aborts_leave_nothing_behind(world: World) -> None:
    """API-19: blocks, adapter references, threads and sockets are as before."""
    abort_at_random(world, 1000)


@pytest.mark.long
def test_ten_thousand_aborts_leave_nothing_behind(world: World) -> None:
    """API-19."""
    abort_at_random(world, 10_000)
