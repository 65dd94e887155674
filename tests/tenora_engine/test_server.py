"""The engine process over its real socket."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from engine_under_test import Answer, EngineUnderTest, World, store_adapter
from gateway_double import EngineProcess, GatewayDouble

from tenora_engine.wire import Abort, FailCode, FinishReason, Heartbeat, Hello, Tier, Usage, encode

PROMPT = [5, 9, 13, 17, 21, 25, 29, 33]


@pytest.fixture(scope="module")
def process(world: World) -> Iterator[EngineProcess]:
    with tempfile.TemporaryDirectory(prefix="tenora-test-") as folder:
        started = EngineProcess(world.model, world.store.root, Path(folder))
        yield started
        started.close()


@pytest.fixture
def gateway(process: EngineProcess) -> Iterator[GatewayDouble]:
    connected = GatewayDouble(process.address)
    connected.hello()
    yield connected
    connected.close()


@pytest.fixture(scope="module")
def expected(world: World) -> Iterator[Callable[..., list[int]]]:
    """The answer of an engine without a socket."""
    plain = EngineUnderTest(world.model, world.store)
    yield lambda name=None, num=16: plain.ask(PROMPT, world.uses(name), max_tokens=num).text
    plain.close()


def test_streams_of_base_and_adapters(gateway: GatewayDouble, world: World, expected: Callable[..., list[int]]):
    """All in flight together; one message per engine step holds the news of all of them."""
    adapters, num = ("r8", "r64"), 120  # tokens: enough that the last to arrive meets the first
    names = (None, *adapters)
    for name in adapters:  # an adapter's load is no part of this
        gateway.submit(f"load {name}", PROMPT, adapter=world.digests[name], max_tokens=1)
        gateway.result(f"load {name}")
    for name in names:
        gateway.submit(f"{name}", PROMPT, adapter=world.digests.get(name or ""), max_tokens=num)
    for name in names:
        answer = gateway.result(f"{name}")
        assert answer.text == expected(name, num)
        assert answer.usage is not None
        assert (answer.usage.prompt, answer.usage.completion) == (len(PROMPT), num)
    assert max(len(step.outputs) for step in gateway.steps) == 3
    assert len({step.instance_id for step in gateway.steps}) == 1


def test_status_tells_what_there_is(gateway: GatewayDouble, world: World):
    gateway.submit("warm", PROMPT, adapter=world.digests["r4"], max_tokens=2)
    gateway.result("warm")
    status = gateway.quiet_status()
    assert (status.engine_id, status.base_fingerprint) == ("under-test", world.base.fingerprint)
    assert (status.kv_blocks_total, status.kv_blocks_free, status.block_size) == (64, 64, 16)
    assert status.load_tokens == 0
    assert not status.draining
    assert world.digests["r4"] in {adapter.digest for adapter in status.adapters if adapter.tier is Tier.DEVICE}


def test_abort_frees_blocks(gateway: GatewayDouble):
    """API-19: in mid-stream; the last event carries the exact usage."""
    gateway.submit("long", PROMPT, max_tokens=240)
    gateway.pump(lambda: len(gateway.answers["long"].tokens[0]) >= 3)
    gateway.send(Abort("long"))
    answer = gateway.result("long")
    assert answer.finish == {0: FinishReason.ABORT}
    assert answer.usage is not None
    assert answer.usage.completion == len(answer.text)
    assert gateway.quiet_status().kv_blocks_free == 64


def test_a_deadline_aborts(gateway: GatewayDouble):
    gateway.submit("late", PROMPT, max_tokens=240, deadline_s=0.001)
    assert gateway.result("late").finish == {0: FinishReason.ABORT}


def abandon(process: EngineProcess) -> GatewayDouble:
    """A gateway with more work under way than the engine can end by itself before anybody notices."""
    leaving = GatewayDouble(process.address)
    leaving.hello()
    for index in range(60):
        leaving.submit(f"abandoned-{index}", PROMPT, max_tokens=240, n=4, temperature=1.0)
    leaving.pump(lambda: leaving.answers["abandoned-0"].tokens[0])
    return leaving


@pytest.mark.parametrize("goodbye", [True, False], ids=["goodbye", "closed-socket"])
def test_a_gateway_that_leaves(process: EngineProcess, gateway: GatewayDouble, goodbye: bool):
    """Its requests end and their blocks come back, whether it says so or not."""
    abandon(process).close(goodbye=goodbye)
    assert gateway.quiet_status().kv_blocks_free == 64
    gateway.submit("after", PROMPT, max_tokens=4)
    assert len(gateway.result("after").text) == 4


def test_a_gateway_that_falls_silent(process: EngineProcess, gateway: GatewayDouble):
    """Its socket stays open, its heartbeats stop: its requests are ended, not finished for nobody."""
    silent = abandon(process)
    assert gateway.quiet_status().kv_blocks_free == 64
    silent.take_backlog()
    assert not all(answer.num_terminal for answer in silent.answers.values())
    silent.close(goodbye=False)


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"garbage",),
        (b"\xc1\xff\x00" * 50,),
        (b"\x81\xa4type\xa6submit",),
        (b"\x81\xa4type\xa7unknown",),
        (b"one", b"two", b"three"),
        (msgspec.msgpack.encode([1] * 1000),),
        (msgspec.msgpack.encode("x" * 100_000),),
        (b"\x91" * 2000,),
    ],
)
def test_garbage_is_survived(gateway: GatewayDouble, frames: tuple[bytes, ...]):
    gateway.send_raw(*frames)
    gateway.submit("next", PROMPT, max_tokens=3)
    assert len(gateway.result("next").text) == 3


def test_a_submit_that_cannot_be_read_is_answered(gateway: GatewayDouble):
    """It still ends in exactly one terminal event."""
    frame = {"type": "submit", "request_id": "odd", "token_ids": ["a"], "sampling": {}}
    gateway.send_raw(msgspec.msgpack.encode(frame))
    gateway.answers["odd"] = Answer()
    answer = gateway.result("odd")
    assert answer.failed is not None
    assert answer.failed.code is FailCode.INVALID
    assert answer.failed.usage == Usage(0, 0, 0)


def test_request_ids_are_each_gateways_own(process: EngineProcess, gateway: GatewayDouble):
    other = GatewayDouble(process.address)
    other.hello()
    gateway.submit("same", PROMPT, max_tokens=5)
    other.submit("same", PROMPT, max_tokens=7)
    assert (len(gateway.result("same").text), len(other.result("same").text)) == (5, 7)
    other.close()


def test_a_message_of_a_later_protocol_is_read(gateway: GatewayDouble):
    """A field that this engine does not know is no obstacle."""
    for message in (Hello("g"), Heartbeat("g")):
        fields = msgspec.msgpack.decode(encode(message))
        gateway.send_raw(msgspec.msgpack.encode(fields | {"later": [1, 2]}))
    gateway.quiet_status()


def test_sigterm_lets_running_requests_end(world: World, tmp_path: Path):
    """What runs ends normally, what comes is sent elsewhere, the process exits with 0."""
    process = EngineProcess(world.model, world.store.root, tmp_path)
    try:
        gateway = GatewayDouble(process.address)
        gateway.hello()
        gateway.submit("running", PROMPT, max_tokens=240, ignore_eos=True)
        gateway.pump(lambda: gateway.answers["running"].tokens[0])
        process.terminate()
        gateway.pump(lambda: gateway.status is not None and gateway.status.draining)
        gateway.submit("late", PROMPT)
        late, running = gateway.result("late"), gateway.result("running")
        assert late.failed is not None
        assert (late.failed.code, late.failed.retryable) == (FailCode.SHUTTING_DOWN, True)
        assert len(running.text) == 240
        assert process.wait() == 0
        gateway.close()
    finally:
        process.close()


def test_an_impossible_drain_is_cut_short(world: World, tmp_path: Path):
    process = EngineProcess(world.model, world.store.root, tmp_path, "--drain-s", "0")
    try:
        gateway = GatewayDouble(process.address)
        gateway.hello()
        gateway.submit("running", PROMPT, max_tokens=240, ignore_eos=True)
        gateway.pump(lambda: gateway.answers["running"].tokens[0])
        process.terminate()
        assert gateway.result("running").finish == {0: FinishReason.ABORT}
        assert process.wait() == 0
        gateway.close()
    finally:
        process.close()


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--model", "missing", "missing/config.json"),
        ("--blobs", "ftp://elsewhere", "blob store"),
        ("--listen", "nonsense", "cannot listen"),
    ],
)
def test_what_is_wrong_at_the_start_is_said(world: World, tmp_path: Path, option: str, value: str, word: str):
    process = EngineProcess(world.model, world.store.root, tmp_path, option, value)
    assert process.wait() == 1
    process.close()
    text = process.log.read_text()
    assert word in text
    assert "Traceback" not in text


def test_an_adapter_that_appears_later_is_served(gateway: GatewayDouble, world: World, tmp_path: Path):
    """Nothing has to be announced to the engine: it asks the blob store by digest when it needs to."""
    digest = store_adapter(world.store, world.folders["r1"], world.base)
    gateway.submit("unknown", PROMPT, adapter="0" * 64)
    answer = gateway.result("unknown")
    assert answer.failed is not None
    assert answer.failed.code is FailCode.ADAPTER_UNAVAILABLE
    gateway.submit("known", PROMPT, adapter=digest, max_tokens=2)
    assert len(gateway.result("known").text) == 2
