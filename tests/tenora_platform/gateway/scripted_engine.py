"""An engine that speaks the real wire over a real socket and says what a test told it to say.

It keeps its own books: `produced` is the truth about how many tokens it made for each request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import zmq

from tenora_engine.wire import (
    Abort,
    FailCode,
    Failed,
    FinishReason,
    Goodbye,
    Heartbeat,
    Hello,
    Output,
    Status,
    Step,
    Submit,
    TokenLogprob,
    Usage,
    decode_to_engine,
    encode,
)


@dataclass(frozen=True)
class Script:
    """What to answer. `pieces` are the bytes of the tokens of every choice, `per_step` of them at a time."""

    pieces: Sequence[bytes] = (b"Hello", b" ok")
    finish: FinishReason = FinishReason.STOP
    top: Sequence[tuple[bytes, float]] = ()  # alternatives beside every token
    logprob: float = -0.5
    fail: FailCode | None = None  # after the pieces, instead of an end
    message: str = "scripted failure"
    retryable: bool = False
    endless: bool = False  # the pieces again and again, up to max_tokens
    pause_after: int | None = None  # tokens per choice; goes on when the test sets `go_on`
    die_after: int | None = None  # tokens per choice; then the process is as good as killed
    cached: int = 0
    per_step: int = 1
    go_on: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Running:
    peer: bytes
    submit: Submit
    script: Script
    num_produced: int = 0  # per choice
    aborted: bool = False

    @property
    def usage(self) -> Usage:
        total = self.num_produced * self.submit.sampling.n
        return Usage(len(self.submit.token_ids), self.script.cached, total)


class ScriptedEngine:
    """`respond` chooses the script of each request; by default `scripts` are used up in order, then the default."""

    def __init__(self, fingerprint: str, ids: dict[bytes, int], *, engine_id: str = "engine-0") -> None:
        self.fingerprint = fingerprint
        self.ids = ids
        self.engine_id = engine_id
        self.scripts: list[Script] = []
        self.default = Script()
        self.respond: Callable[[Submit], Script] = lambda _: self.scripts.pop(0) if self.scripts else self.default
        self.submits: list[Submit] = []
        self.aborts: list[str] = []
        self.produced: dict[str, int] = {}  # request id -> tokens, over all choices
        self.peers: set[bytes] = set()
        self.step_s = 0.0
        self.max_waiting = 64
        self.max_model_len = 256
        self.url = ""
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, url: str | None = None) -> ScriptedEngine:
        """Listen; on `url` to come back as the same engine, restarted."""
        self._stop = threading.Event()
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(url, bound, self._stop), daemon=True)
        self._thread.start()
        assert bound.wait(10)
        return self

    def kill(self) -> None:
        """Stop without a word, as kill -9 does."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10)

    def restart(self) -> None:
        self.kill()
        self.start(self.url)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        with self._news:
            assert self._news.wait_for(condition, timeout_s), "the engine did not get there"

    # The thread.

    def _serve(self, url: str | None, bound: threading.Event, stop: threading.Event) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        if url is None:
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            self.url = f"tcp://127.0.0.1:{port}"
        else:
            socket.bind(url)
        bound.set()
        instance_id = uuid4().hex
        running: dict[str, _Running] = {}
        status_at = 0.0
        try:
            while not stop.is_set():
                while socket.poll(1 if running else 10):
                    self._take(socket, socket.recv_multipart(), instance_id, running)
                if time.monotonic() >= status_at:
                    status_at = time.monotonic() + 0.2
                    for peer in self.peers:
                        socket.send_multipart([peer, encode(self._status(instance_id, running))])
                self._step(socket, instance_id, running, stop)
                time.sleep(self.step_s)
                with self._news:
                    self._news.notify_all()
        finally:
            self.peers = set()
            socket.close()
            context.term()

    def _take(
        self, socket: zmq.Socket[bytes], frames: list[bytes], instance_id: str, running: dict[str, _Running]
    ) -> None:
        peer, message = frames[0], decode_to_engine(frames[1])
        match message:
            case Hello():
                self.peers.add(peer)
                socket.send_multipart([peer, encode(self._status(instance_id, running))])
            case Submit():
                self.submits.append(message)
                running[message.request_id] = _Running(peer, message, self.respond(message))
                self.produced[message.request_id] = 0
            case Abort(request_id):
                self.aborts.append(request_id)
                if request_id in running:
                    running[request_id].aborted = True
            case Goodbye():
                self.peers.discard(peer)
            case Heartbeat():
                pass

    def _status(self, instance_id: str, running: dict[str, _Running]) -> Status:
        return Status(
            engine_id=self.engine_id,
            instance_id=instance_id,
            base_fingerprint=self.fingerprint,
            build="scripted",
            max_model_len=self.max_model_len,
            block_size=16,
            kv_blocks_total=100,
            kv_blocks_free=100,
            running=len(running),
            waiting=0,
            load_tokens=0,
            max_waiting=self.max_waiting,
        )

    def _step(
        self, socket: zmq.Socket[bytes], instance_id: str, running: dict[str, _Running], stop: threading.Event
    ) -> None:
        steps: dict[bytes, Step] = {}
        for request in list(running.values()):
            script = request.script
            if script.die_after is not None and request.num_produced >= script.die_after:
                stop.set()
                return
            step = steps.setdefault(request.peer, Step(instance_id))
            if request.aborted:
                step.outputs.append(self._last(request, FinishReason.ABORT))
            elif (
                script.pause_after is not None
                and request.num_produced >= script.pause_after
                and not script.go_on.is_set()
            ) or self._produce(request, step):
                continue
            del running[request.submit.request_id]
        for peer, step in steps.items():
            if step.outputs or step.failures:
                socket.send_multipart([peer, encode(step)])

    def _produce(self, request: _Running, step: Step) -> bool:
        """The next tokens of each choice, or the end; whether there is more to come."""
        script, sampling, done = request.script, request.submit.sampling, request.num_produced
        limit = sampling.max_tokens if script.endless else min(sampling.max_tokens, len(script.pieces))
        at_end = done >= len(script.pieces) and not script.endless
        if at_end and script.fail is not None:
            request_id = request.submit.request_id
            step.failures.append(Failed(request_id, script.fail, script.message, script.retryable, request.usage))
            return False
        if done >= limit:
            step.outputs.append(self._last(request, script.finish if at_end else FinishReason.LENGTH))
            return False
        token_ids = [
            self.ids[script.pieces[position % len(script.pieces)]]
            for position in range(done, min(limit, done + script.per_step))
        ]
        request.num_produced += len(token_ids)
        self.produced[request.submit.request_id] += len(token_ids) * sampling.n
        last = request.num_produced == limit and (script.fail is None or limit == sampling.max_tokens)
        reason = None
        if last:
            reason = FinishReason.LENGTH if limit == sampling.max_tokens else script.finish
        for choice in range(sampling.n):
            step.outputs.append(
                Output(
                    request_id=request.submit.request_id,
                    choice=choice,
                    token_ids=token_ids,
                    usage=request.usage,
                    finish_reason=reason,
                    final=last and choice == sampling.n - 1,
                    logprobs=[self._logprob(script, each) for each in token_ids]
                    if sampling.logprobs is not None
                    else None,
                    prompt_logprobs=self._prompt_logprobs(request) if done == 0 and choice == 0 else None,
                )
            )
        return not last

    def _last(self, request: _Running, reason: FinishReason) -> Output:
        return Output(
            request_id=request.submit.request_id,
            choice=0,
            token_ids=[],
            usage=request.usage,
            finish_reason=reason,
            final=True,
            prompt_logprobs=self._prompt_logprobs(request) if request.num_produced == 0 else None,
        )

    def _logprob(self, script: Script, token_id: int) -> TokenLogprob:
        return TokenLogprob(token_id, script.logprob, tuple((self.ids[piece], value) for piece, value in script.top))

    def _prompt_logprobs(self, request: _Running) -> list[TokenLogprob | None] | None:
        if request.submit.sampling.prompt_logprobs is None:
            return None
        return [None, *(self._logprob(request.script, token_id) for token_id in request.submit.token_ids[1:])]
