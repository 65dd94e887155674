"""What planning a step ahead brings, and what guessing brings: one engine, side by side in one run.

    python bench/async_step.py --model build/smollm2-135m --streams 1 4 16

Off and on alternate in short rounds over the same weights, so that whatever else the machine does meets both alike.
Rates are output tokens per second of the whole round, prompts included; the ratio is the median over pairs of
neighbouring rounds. `host` is the processor time of the core's thread for a step in turn (planning, layout, committing,
encoding), `computing` that of all other threads; both are medians over rounds, and hardly depend on who else is there.
On T threads no more than host / (host + computing / T) of a step can be hidden.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tenora_engine.assemble import Engine, build_engine
from tenora_engine.config import Dtype, EngineConfig
from tenora_engine.wire import Sampling, Step, Submit, encode

PROMPT = 128  # tokens


@dataclass(frozen=True)
class Round:
    tokens: int
    steps: int
    seconds: float
    host: float  # seconds of processor time of the core's thread
    computing: float  # of the others

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def prompts(num: int, vocab: int, repeats: bool) -> list[list[int]]:
    """Random tokens; with `repeats` the same few over and over, as texts have that answer from their prompt."""
    dice = random.Random(7)
    made = [dice.choices(range(100, vocab), k=16 if repeats else PROMPT) for _ in range(num)]
    return [(tokens * PROMPT)[:PROMPT] for tokens in made]


def run(engine: Engine, asked: list[list[int]], output: int, temperature: float) -> Round:
    """All at once, `output` tokens each; news are encoded as the server does."""
    core = engine.core
    for index, tokens in enumerate(asked):
        sampling = Sampling(max_tokens=output, temperature=temperature, seed=index, ignore_eos=True)
        core.submit(Submit(f"{index}", tokens, sampling, "t", b"salt", core.capacity.base_fingerprint), b"route")
    steps = 0
    began, host_began, all_began = time.perf_counter(), time.thread_time(), time.process_time()
    while core.has_requests:
        steps += 1
        for news in core.step().values():
            encode(Step("bench", news.outputs, news.failures))
    seconds, host = time.perf_counter() - began, time.thread_time() - host_began
    computing = time.process_time() - all_began - host
    core.step()
    return Round(len(asked) * output, steps, seconds, host, computing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: small models soon repeat themselves")
    parser.add_argument("--dtype", type=Dtype, default=Dtype.AUTO)
    parser.add_argument("--repeats", action="store_true", help="prompts that repeat themselves")
    parser.add_argument("--draft-tokens", type=int, default=0, help="compare guessing instead of planning ahead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as blobs:
        config = EngineConfig(
            listen="",
            model=options.model,
            blobs=f"file://{blobs}",
            dtype=options.dtype,
            threads=options.threads,
            prefix_cache=False,
            max_sequences=max(options.streams),
            max_batch_tokens=max(128, 2 * max(options.streams)),
            max_waiting=max(options.streams) + 1,
            draft_tokens=options.draft_tokens,
        )
        engine = build_engine(config)
        vocab = engine.core.capacity.vocab_size
        for streams in options.streams:
            asked = prompts(streams, vocab, options.repeats)
            run(engine, asked, 8, options.temperature)
            pairs: list[tuple[Round, Round]] = []
            for _ in range(options.rounds):
                pair = []
                for other in (False, True):
                    switch(engine, guess=options.draft_tokens > 0, on=other)
                    pair.append(run(engine, asked, options.output, options.temperature))
                pairs.append((pair[0], pair[1]))
            off, on = (statistics.median(pair[side].rate for pair in pairs) for side in (0, 1))
            ratio = statistics.median(b.rate / a.rate for a, b in pairs)
            host = statistics.median(1000 * a.host / a.steps for a, _ in pairs)
            computing = statistics.median(1000 * a.computing / a.steps for a, _ in pairs)
            more = pairs[0][1].steps / pairs[0][0].steps
            print(
                f"{streams:3d} streams: off {off:7.1f}, on {on:7.1f} tokens/s, ratio {ratio:.3f};"
                f" host {host:.2f} ms, computing {computing:.1f} ms a step; {more:.2f} x the steps",
                flush=True,
            )
        engine.close()


def switch(engine: Engine, *, guess: bool, on: bool) -> None:
    """Between rounds nothing is launched."""
    if guess:
        engine.core.scheduler.drafter = engine.core._speculator if on else None
    else:
        engine.core._plan_ahead = on


if __name__ == "__main__":
    main()
