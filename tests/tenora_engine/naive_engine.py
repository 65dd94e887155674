"""An engine around the scheduler whose model is memory and arithmetic: no torch, no core.

A cell of the KV cache holds a hash of what was computed into it: the scope and all tokens up to its own. A step reads
all cells that its chunks look back at, and finds it if any holds something else: a block given away too early, found
under a wrong key, copied in the wrong order, written by two. What a sequence says next is a function of its tokens, so
that `truth` knows the whole answer without any engine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from random import Random

from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.request import Request, RequestKey, Sequence, SequenceState
from tenora_engine.scheduler import Chunk, Limits, Pin, Plan, Scheduler, SwapCost
from tenora_engine.wire import AdapterUse, Priority, Sampling

BLOCK_SIZE = 4
STOP = 0
POISON = -1


@dataclass
class ScriptedAdapters:
    """Adapters that are loaded when a test says so, with a number of slots; counts its pins."""

    num_slots: int = 2
    loading: set[str] = field(default_factory=set)
    pins: Counter[str] = field(default_factory=Counter)
    invocations: dict[str, tuple[int, ...]] = field(default_factory=dict)
    slots: list[str | None] = field(default_factory=list)

    def pin(self, uses: tuple[AdapterUse, ...], *, may_place: bool, insist: bool = False) -> Pin:
        digests = [use.digest for use in uses]
        if self.loading.intersection(digests):
            return Pin.LOADING
        missing = [digest for digest in digests if digest not in self.slots]
        self.slots += [None] * (self.num_slots - len(self.slots))
        free = [i for i, slot in enumerate(self.slots) if slot is None or not (self.pins[slot] or slot in digests)]
        if missing and (not may_place or len(free) < len(missing)):
            return Pin.NO_SLOT
        for index, digest in zip(free, missing, strict=False):
            self.slots[index] = digest
        self.pins.update(digests)
        return Pin.PINNED

    def unpin(self, uses: tuple[AdapterUse, ...]) -> None:
        for use in uses:
            assert self.pins[use.digest] > 0
            self.pins[use.digest] -= 1

    def invocation_of(self, digest: str) -> tuple[int, ...] | None:
        return self.invocations.get(digest)

    def drain_for(self, claims: Iterable[tuple[AdapterUse, ...]]) -> frozenset[str]:
        wanted = {use.digest for uses in claims for use in uses}
        used = sorted((digest for digest in +self.pins if digest not in wanted), key=lambda digest: self.pins[digest])
        num_missing = len(wanted.difference(self.slots))
        num_free = self.num_slots - len(used) - len(wanted.intersection(self.slots))
        return frozenset(used[: max(0, num_missing - num_free)])


def make_request(
    name: str,
    prompt: Many[int],
    *,
    max_tokens: int = 8,
    n: int = 1,
    adapters: Many[str] = (),
    tenant: str = "tenant",
    weight: float = 1.0,
    priority: Priority = Priority.INTERACTIVE,
    stop: Many[int] = (),
    prompt_logprobs: int | None = None,
) -> Request:
    request = Request(
        key=RequestKey(b"gateway", name),
        tenant=tenant,
        prompt=list(prompt),
        sampling=Sampling(max_tokens=max_tokens, n=n, seed=0, prompt_logprobs=prompt_logprobs),
        adapters=tuple(map(AdapterUse, adapters)),
        cache_root="/".join([tenant, *adapters]).encode(),
        stop_token_ids=frozenset(stop),
        max_new_tokens=max_tokens,
        weight=weight,
        priority=priority,
    )
    request.sequences = [Sequence(request, choice, list(prompt)) for choice in range(n)]
    return request


class Truth:
    """What each sequence says, and the content of its cells, as far as anybody asked."""

    def __init__(self, vocab: int = 20) -> None:
        self._vocab = vocab
        self._tokens: dict[Sequence, list[int]] = {}
        self._cells: dict[Sequence, list[int]] = {}

    def tokens(self, sequence: Sequence, count: int) -> list[int]:
        """The first `count` tokens, end tokens not heeded."""
        tokens = self._tokens.setdefault(sequence, list(sequence.request.prompt))
        while len(tokens) < count:
            cells = self._extend(sequence, tokens)
            tokens.append(hash((cells[-1], sequence.choice)) % self._vocab)
        return tokens[:count]

    def cells(self, sequence: Sequence, count: int) -> list[int]:
        self.tokens(sequence, count)
        return self._extend(sequence, self._tokens[sequence])[:count]

    def _extend(self, sequence: Sequence, tokens: list[int]) -> list[int]:
        cells = self._cells.setdefault(sequence, [])
        for token in tokens[len(cells) :]:
            cells.append(hash((cells[-1] if cells else hash(sequence.request.cache_root), token)) & (2**62 - 1))
        return cells


@dataclass(eq=False)
class Part:
    """A chunk as it was launched: sequences change, this does not."""

    chunk: Chunk
    blocks: list[int]
    slots: tuple[int, ...]
    tokens_known: int


@dataclass(eq=False)
class Flight:
    plan: Plan
    parts: list[Part]
    executed: bool = False
    failed: set[Chunk] = field(default_factory=set)


class Guesses:
    """A drafter that is right about two times of three."""

    def __init__(self, truth: Truth, dice: Random) -> None:
        self._truth = truth
        self._dice = dice

    def propose(self, sequence: Sequence, limit: int) -> tuple[int, ...]:
        assert sequence.num_unknown == 1  # the very token that is being planned
        known = len(sequence.tokens)
        assert sequence.num_planned == known
        guesses = self._truth.tokens(sequence, known + min(limit, self._dice.randint(0, 5)))[known:]
        return tuple(guess if self._dice.random() < 0.7 else guess + 1 for guess in guesses)


class NaiveEngine:
    """Plans, launches, executes in order, commits; checks every step against what must hold."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        sequences: int = 8,
        tokens: int = 16,
        adapters: ScriptedAdapters | None = None,
        prefix_cache: bool = True,
        host_blocks: int = 0,
        swap_cost: SwapCost | None = None,
        guesses: Random | None = None,
        tenant_blocks: int | None = None,
        tenant_adapters: int | None = None,
        patience_s: float = 5.0,
        batch_patience_s: float = 30.0,
    ) -> None:
        self.truth = Truth()
        self.adapters = adapters or ScriptedAdapters()
        self.limits = Limits(sequences, tokens, tenant_blocks, tenant_adapters, patience_s, batch_patience_s)
        self.cache = PrefixCache(blocks, BLOCK_SIZE, enabled=prefix_cache)
        self.scheduler = Scheduler(
            self.limits,
            self.cache,
            self.adapters,
            None if guesses is None else Guesses(self.truth, guesses),
            host_blocks=host_blocks,
            swap_cost=swap_cost,
        )
        self.now = 0.0
        self.requests: list[Request] = []
        self.flights: deque[Flight] = deque()
        self.last_plan: Plan | None = None
        self._poisoned: set[Request] = set()  # a step found values that are not finite
        self._device = {block: [POISON] * BLOCK_SIZE for block in range(1, blocks + 1)}
        self._host = {block: [POISON] * BLOCK_SIZE for block in range(1, host_blocks + 1)}

    # -- what happens to it ---------------------------------------------------------------------------------------

    def add(self, request: Request) -> Request:
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        for sequence in request.sequences:
            self.scheduler.finish(sequence)

    def launch(self) -> Plan:
        """Plan a step and launch it; at most one other may be under way."""
        assert len(self.flights) < 2
        ready = self._decoding()
        plan = self.scheduler.schedule(self.now)
        self._check_plan(plan, ready)
        parts = [
            Part(
                chunk,
                list(chunk.sequence.blocks),
                tuple(self.adapters.slots.index(use.digest) for use in chunk.sequence.request.adapters),
                len(chunk.sequence.tokens),
            )
            for chunk in plan.chunks
        ]
        self.flights.append(Flight(plan, parts))
        self.last_plan = plan
        return plan

    def execute(self, fail: Iterable[Chunk] = ()) -> None:
        """Compute the oldest launched step that is not computed yet."""
        flight = next(flight for flight in self.flights if not flight.executed)
        flight.executed = True
        flight.failed = set(fail)
        self._poisoned.update(chunk.sequence.request for chunk in flight.failed)
        moved = [(swap.host, list(self._device[swap.device])) for swap in flight.plan.swap_out]
        self._host.update(moved)
        moved = [(swap.device, list(self._host[swap.host])) for swap in flight.plan.swap_in]
        self._device.update(moved)
        moved = [(copy.target, list(self._device[copy.source])) for copy in flight.plan.copies]
        self._device.update(moved)
        for part in flight.parts:
            self._write(part, poison=part.chunk in flight.failed)
        for part in flight.parts:
            sequence = part.chunk.sequence
            if sequence.state is not SequenceState.FINISHED and sequence.request not in self._poisoned:
                self._read(part)

    def commit(self) -> None:
        """Take in the oldest launched step."""
        flight = self.flights.popleft()
        assert flight.executed
        for part in flight.parts:
            chunk = part.chunk
            if chunk in flight.failed:
                self.abort(chunk.sequence.request)
                continue
            taken = self.scheduler.commit(chunk, self._draw(part))
            sequence = chunk.sequence
            prompt_only = sequence.request.max_new_tokens == 0 and sequence.num_computed == len(sequence.request.prompt)
            assert not (taken and prompt_only)
            if sequence.finish_reason is not None or prompt_only:
                self.scheduler.finish(sequence)
        self.scheduler.retire(flight.plan)

    def step(self, seconds: float = 0.0) -> Plan:
        """One whole step, nothing ahead."""
        while self.flights:
            self._commit_next()
        self.now += seconds
        plan = self.launch()
        self._commit_next()
        return plan

    def run(self, limit: int = 5_000, seconds: float = 0.1) -> int:
        """Until all have ended; the number of steps."""
        for steps in range(limit):
            if not self.scheduler.has_sequences:
                return steps
            self.step(seconds)
        raise AssertionError("no progress")

    def _commit_next(self) -> None:
        if not self.flights[0].executed:
            self.execute()
        self.commit()

    # -- its model ------------------------------------------------------------------------------------------------

    def _write(self, part: Part, *, poison: bool) -> None:
        chunk = part.chunk
        cells = self.truth.cells(chunk.sequence, chunk.end - len(chunk.drafts))
        values = cells[chunk.start :] + [POISON] * len(chunk.drafts)
        known = part.tokens_known
        right = self.truth.tokens(chunk.sequence, known + len(chunk.drafts))[known:]
        for index, (guess, truth) in enumerate(zip(chunk.drafts, right, strict=True)):
            if guess != truth:
                break
            values[chunk.length - len(chunk.drafts) + index] = self.truth.cells(chunk.sequence, known + index + 1)[-1]
        for position, value in zip(range(chunk.start, chunk.end), values, strict=True):
            self._device[part.blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE] = POISON if poison else value

    def _read(self, part: Part) -> None:
        chunk = part.chunk
        end = chunk.end - len(chunk.drafts)
        expected = self.truth.cells(chunk.sequence, end)
        found = [self._device[part.blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE] for position in range(end)]
        assert found == expected, f"{chunk.sequence.request.key.request_id}: cells of somebody else"
        slots = tuple(self.adapters.slots.index(use.digest) for use in chunk.sequence.request.adapters)
        assert slots == part.slots, "an adapter moved under a launched step"

    def _draw(self, part: Part) -> list[int]:
        chunk = part.chunk
        if not chunk.samples:
            return []
        first = chunk.end - len(chunk.drafts)
        right = self.truth.tokens(chunk.sequence, first + len(chunk.drafts) + 1)[first:]
        num_right = next((i for i, guess in enumerate(chunk.drafts) if guess != right[i]), len(chunk.drafts))
        return right[: num_right + 1]

    # -- what must hold -------------------------------------------------------------------------------------------

    def _decoding(self) -> list[Sequence]:
        return [
            sequence
            for sequence in self.scheduler.running
            if sequence.num_pending == 1 and not sequence.ends_with_what_is_launched
        ]

    def _check_plan(self, plan: Plan, decoding: list[Sequence]) -> None:
        planned = [chunk.sequence for chunk in plan.chunks]
        assert len(set(planned)) == len(planned)
        assert sum(chunk.length for chunk in plan.chunks) <= self.limits.max_batch_tokens
        assert len(self.scheduler.running) <= self.limits.max_sequences
        for chunk in plan.chunks:
            assert chunk.length > len(chunk.drafts) >= 0
            assert chunk.end <= len(chunk.sequence.blocks) * BLOCK_SIZE
        if self.cache.pool.num_leaving == 0:
            # Whoever is being read gets on in every step, whatever else there is to do.
            assert all(sequence in planned for sequence in decoding if sequence.state is SequenceState.RUNNING)

    def check(self) -> None:
        """Every block, host block and pin is somebody's, or on its way back, or free."""
        held: Counter[int] = Counter()
        pins: Counter[str] = Counter()
        by_tenant: dict[str, set[int]] = {}
        adapters: dict[str, set[str]] = {}
        for sequence in self.scheduler.running:
            assert sequence.state is SequenceState.RUNNING
            assert not sequence.host_blocks
            assert sequence.num_computed <= sequence.num_planned <= len(sequence.blocks) * BLOCK_SIZE
            held.update(sequence.blocks)
            pins.update(use.digest for use in sequence.request.adapters)
            by_tenant.setdefault(sequence.request.tenant, set()).update(sequence.blocks)
            adapters.setdefault(sequence.request.tenant, set()).update(use.digest for use in sequence.request.adapters)
        pool = self.cache.pool
        assert all(pool.holders(block) == held[block] for block in self._device)
        assert pool.num_free + pool.num_leaving + len(held) == pool.num_blocks
        swapped = [block for sequence in self.scheduler.waiting for block in sequence.host_blocks]
        assert len(set(swapped)) == len(swapped)
        host = self.scheduler.host_pool
        assert host.num_free + host.num_leaving + len(swapped) == host.num_blocks
        if not self.flights:
            assert pool.num_leaving == 0
            assert +self.adapters.pins == pins
        assert pins <= self.adapters.pins
        for tenant, account in self.cache.accounts.snapshot().items():
            assert account.held_blocks == len(by_tenant.get(tenant, ()))
            assert account.held_blocks <= (self.limits.tenant_blocks or pool.num_blocks)
            assert len(adapters.get(tenant, ())) <= (self.limits.tenant_adapters or self.adapters.num_slots)
        num_cached = sum(account.cached_blocks for account in self.cache.accounts.snapshot().values())
        assert num_cached == sum(pool.holders(block) == 0 for block in self.cache._key_of)

    def check_at_rest(self) -> None:
        self.step()
        self.check()
        assert not self.scheduler.has_sequences
        assert self.cache.pool.num_free == self.cache.pool.num_blocks
        assert self.scheduler.host_pool.num_free == self.scheduler.host_pool.num_blocks
        assert not +self.adapters.pins
        for request in self.requests:
            for sequence in request.sequences:
                assert sequence.state is SequenceState.FINISHED
                assert sequence.tokens == self.truth.tokens(sequence, len(sequence.tokens))
                assert sequence.num_generated <= request.max_new_tokens
                # Nothing follows an end token.
                assert not request.stop_token_ids.intersection(sequence.tokens[len(request.prompt) : -1])
