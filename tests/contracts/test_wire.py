"""The wire between gateway and engine, byte for byte.

`golden_wire.json` holds one message of each kind as protocol 1 wrote it, in hex. It is never edited: a change of the
bytes of these messages breaks gateways and engines of different versions that run side by side during an upgrade. A new
field gets a new entry, whose name says what it adds.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tenora_engine import wire
from tenora_engine.wire import (
    Abort,
    AdapterUse,
    FailCode,
    Failed,
    FinishReason,
    Goodbye,
    Grammar,
    GrammarKind,
    Heartbeat,
    Hello,
    Output,
    Priority,
    ResidentAdapter,
    Sampling,
    Status,
    Step,
    Submit,
    Tier,
    TokenLogprob,
    Usage,
)

GOLDEN: dict[str, str] = json.loads((Path(__file__).parent / "golden_wire.json").read_text())

TO_ENGINE = {
    "hello": Hello("gateway-1"),
    "heartbeat": Heartbeat("gateway-1"),
    "goodbye": Goodbye("gateway-1"),
    "abort": Abort("request-1"),
    "submit-least": Submit("request-1", [1, 2, 300], Sampling(), "tenant-1", b"\x00\x01salt", "f" * 64),
    "submit-full": Submit(
        request_id="request-1",
        token_ids=[0, 49151],
        sampling=Sampling(
            max_tokens=64,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.05,
            seed=2**63,
            n=2,
            stop_token_ids=(2, 0),
            ignore_eos=True,
            min_tokens=3,
            presence_penalty=-1.5,
            frequency_penalty=0.25,
            repetition_penalty=1.1,
            logit_bias={5: -100.0, 7: 1.5},
            logprobs=5,
            prompt_logprobs=0,
        ),
        tenant="tenant-1",
        cache_salt=b"salt",
        base_fingerprint="f" * 64,
        adapters=(AdapterUse("a" * 64), AdapterUse("b" * 64, 0.7)),
        weight=2.0,
        priority=Priority.BATCH,
        grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
        deadline_s=30.0,
    ),
    "submit-typical-p": Submit("request-1", [1], Sampling(typical_p=0.9), "tenant-1", b"salt", "f" * 64),
}
TO_GATEWAY = {
    "step-empty": Step("instance-1"),
    "step-full": Step(
        instance_id="instance-1",
        outputs=[
            Output("request-1", 0, [42], Usage(10, 0, 1)),
            Output(
                request_id="request-2",
                choice=1,
                token_ids=[7, 2],
                usage=Usage(prompt=10, cached=8, completion=12),
                finish_reason=FinishReason.STOP,
                final=True,
                logprobs=[TokenLogprob(7, -0.25, ((7, -0.25), (9, -1.5))), TokenLogprob(2, 0.0)],
                prompt_logprobs=[None, TokenLogprob(3, -2.0)],
            ),
        ],
        failures=[Failed("request-3", FailCode.OVERLOADED, "the queue is full", True, Usage(4, 0, 0))],
    ),
    "status": Status(
        engine_id="engine-0",
        instance_id="instance-1",
        base_fingerprint="f" * 64,
        build="tenora-0.1.0",
        max_model_len=8192,
        block_size=16,
        kv_blocks_total=1024,
        kv_blocks_free=1000,
        running=3,
        waiting=2,
        load_tokens=500,
        max_waiting=256,
        adapters=[ResidentAdapter("a" * 64, Tier.DEVICE, 0.5)],
        draining=True,
    ),
}


@pytest.mark.parametrize("name", TO_ENGINE | TO_GATEWAY)
def test_the_bytes_are_the_golden_ones(name: str):
    message = (TO_ENGINE | TO_GATEWAY)[name]
    assert wire.encode(message).hex() == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_are_read(name: str):
    decode = wire.decode_to_engine if name in TO_ENGINE else wire.decode_to_gateway
    assert decode(bytes.fromhex(GOLDEN[name])) == (TO_ENGINE | TO_GATEWAY)[name]


@pytest.mark.parametrize("name", TO_ENGINE | TO_GATEWAY)
def test_fields_of_a_later_version_are_skipped(name: str):
    """An old process reads what a new one writes: objects gain a key, arrays gain a last element."""
    message = (TO_ENGINE | TO_GATEWAY)[name]
    decode = wire.decode_to_engine if name in TO_ENGINE else wire.decode_to_gateway
    fields = msgspec.msgpack.decode(wire.encode(message))
    fields["a_later_field"] = {"anything": [1]}
    for arrays in ("outputs", "failures", "adapters"):
        for item in fields.get(arrays, []):
            if isinstance(item, list):
                item.append("later")
    assert decode(msgspec.msgpack.encode(fields)) == message


def test_bytes_from_before_a_field_was_added_are_read():
    """A new process reads what an old one wrote: whatever has a default may be missing."""
    submit = {
        "type": "submit",
        "request_id": "r",
        "token_ids": [1],
        "sampling": {},
        "tenant": "t",
        "cache_salt": b"",
        "base_fingerprint": "f",
    }
    assert wire.decode_to_engine(msgspec.msgpack.encode(submit)) == Submit("r", [1], Sampling(), "t", b"", "f")
    step = {"type": "step", "instance_id": "i", "outputs": [["r", 0, [5], [1, 0, 1]]]}
    assert wire.decode_to_gateway(msgspec.msgpack.encode(step)) == Step("i", [Output("r", 0, [5], Usage(1, 0, 1))])


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"garbage",
        b"\xc1",
        msgspec.msgpack.encode({"type": "unknown"}),
        msgspec.msgpack.encode({"type": "abort"}),
        msgspec.msgpack.encode({"type": "abort", "request_id": 5}),
        wire.encode(TO_GATEWAY["status"]),
        wire.encode(TO_ENGINE["submit-full"])[:-1],
    ],
)
def test_what_is_no_message_is_refused(frame: bytes):
    with pytest.raises(msgspec.DecodeError):
        wire.decode_to_engine(frame)
