"""`tenora bench`: load on this platform or any OpenAI-compatible server, and what the server did under it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from tenora_platform.bench.prompts import PromptError, PromptForm, SharedBy
from tenora_platform.bench.targets import Api
from tenora_platform.cli.options import AsJson
from tenora_platform.cli.terminal import CommandError, out, progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenora_platform.bench.client import OpenAiClient
    from tenora_platform.bench.load import Limits
    from tenora_platform.bench.options import Options
    from tenora_platform.bench.record import Record
    from tenora_platform.bench.report import Report, SweepReport, Trial
    from tenora_platform.bench.run import Plan

_LENGTHS: Final = "N, uniform:LOW-HIGH, normal:MEAN,DEVIATION or lognormal:MEAN,SIGMA"
_TARGET, _LOAD, _WORK, _SLO, _RESULT = "Whom to ask", "Load", "Requests", "Objective", "Results"


def _option(panel: str, help_text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


def register(app: typer.Typer) -> None:
    @app.command("bench")
    def bench(
        targets: Annotated[Path | None, _option(_TARGET, "Tenants, keys and models: a file like demo.json.")] = None,
        url: Annotated[
            str | None, _option(_TARGET, "Any API up to /v1; its key from TENORA_KEY or OPENAI_API_KEY.")
        ] = None,
        model: Annotated[list[str] | None, _option(_TARGET, "Ask for these only. Default: all that are known.")] = None,
        base: Annotated[bool, _option(_TARGET, "Ask for the base model only.", "--base")] = False,
        tenant_weights: Annotated[str, _option(_TARGET, "uniform or zipf:S over the tenants.")] = "uniform",
        model_weights: Annotated[str, _option(_TARGET, "uniform or zipf:S over a tenant's models.")] = "uniform",
        api: Annotated[Api, _option(_TARGET, "Endpoint.")] = Api.COMPLETIONS,
        streams: Annotated[int | None, _option(_LOAD, "Closed loop of so many; the default, with 16.", min=1)] = None,
        rate: Annotated[float | None, _option(_LOAD, "Open loop: requests per second.")] = None,
        arrivals: Annotated[str, _option(_LOAD, "Of an open loop: poisson, constant or bursts:SIZE.")] = "poisson",
        trace: Annotated[
            Path | None, _option(_LOAD, "Lengths, and without --rate or --streams times, from a file of JSON lines.")
        ] = None,
        duration: Annotated[
            float | None, _option(_LOAD, "Seconds of the window; default 20, or as --requests say.")
        ] = None,
        requests: Annotated[int | None, _option(_LOAD, "End after so many, warm-up not counted.", min=1)] = None,
        warmup: Annotated[
            str | None,
            _option(_LOAD, "N requests, or seconds as 5s, that do not count. Default: one per stream, or 2s."),
        ] = None,
        drain: Annotated[float, _option(_LOAD, "Seconds that running requests have to end.")] = 30.0,
        max_in_flight: Annotated[int, _option(_LOAD, "Of an open loop.", min=1)] = 1000,
        timeout: Annotated[float, _option(_LOAD, "Seconds for one request.")] = 300.0,
        seed: Annotated[int, _option(_LOAD, "The same seed asks the same.")] = 0,
        prompt: Annotated[str, _option(_WORK, f"Tokens of a prompt: {_LENGTHS}.")] = "128",
        output: Annotated[str, _option(_WORK, "Tokens of an answer, written likewise.")] = "64",
        prompt_as: Annotated[
            PromptForm, _option(_WORK, "auto: token ids where they can be sent and known.")
        ] = PromptForm.AUTO,
        tokenizer: Annotated[Path | None, _option(_WORK, "The base's folder or tokenizer.json: exact lengths.")] = None,
        shared_prefix: Annotated[float, _option(_WORK, "Share of each prompt that is common.", min=0, max=1)] = 0.0,
        shared_by: Annotated[SharedBy, _option(_WORK, "To whom it is common.")] = SharedBy.TENANT,
        exact_output: Annotated[
            bool, _option(_WORK, "Send ignore_eos and min_tokens; OpenAI itself refuses them.")
        ] = True,
        temperature: Annotated[float, _option(_WORK, "Of the sampling.")] = 0.0,
        slo_ttft: Annotated[float | None, _option(_SLO, "Limit of a request's first token, ms.")] = None,
        slo_tpot: Annotated[float | None, _option(_SLO, "Limit of its time per output token, ms.")] = None,
        slo_gap: Annotated[float | None, _option(_SLO, "Limit of its longest gap, ms.")] = None,
        slo_e2e: Annotated[float | None, _option(_SLO, "Limit of its end, ms.")] = None,
        slo_share: Annotated[float, _option(_SLO, "Share of requests that must meet it, for --sweep.")] = 0.95,
        sweep: Annotated[
            bool, _option(_SLO, "Find the highest rate that meets it; begins at --rate or 1.", "--sweep")
        ] = False,
        sweep_trials: Annotated[int, _option(_SLO, "Runs that it may take.", min=1, max=50)] = 10,
        as_json: AsJson = False,
        json_file: Annotated[Path | None, _option(_RESULT, "Write the report there.", "--json-file")] = None,
        html: Annotated[Path | None, _option(_RESULT, "Write a page with plots there.")] = None,
        records: Annotated[Path | None, _option(_RESULT, "Write every request there, as JSON lines.")] = None,
    ) -> None:
        """Measure a server as its clients see it. Without options: the demo that runs here, 16 streams, 20 seconds."""
        import uvloop

        from tenora_platform.bench.client import OpenAiClient
        from tenora_platform.bench.find import NothingToAsk, find_targets, local_tokenizer
        from tenora_platform.bench.load import NothingMeasured
        from tenora_platform.bench.options import Options
        from tenora_platform.bench.run import clock
        from tenora_platform.settings import settings

        try:
            found = find_targets(settings(), targets, url, model or [], base_only=base)
            options = Options(
                api=api,
                tenant_weights=tenant_weights,
                model_weights=model_weights,
                streams=streams,
                rate=rate,
                arrivals=arrivals,
                trace=str(trace) if trace else None,
                duration=duration,
                requests=requests,
                warmup=warmup,
                drain=drain,
                max_in_flight=max_in_flight,
                timeout=timeout,
                seed=seed,
                prompt=prompt,
                output=output,
                prompt_as=prompt_as,
                tokenizer=str(tokenizer) if tokenizer else local_tokenizer(settings(), found),
                shared_prefix=shared_prefix,
                shared_by=shared_by,
                exact_output=exact_output,
                temperature=temperature,
                slo_ttft=slo_ttft,
                slo_tpot=slo_tpot,
                slo_gap=slo_gap,
                slo_e2e=slo_e2e,
                slo_share=slo_share,
                sweep=sweep,
                sweep_trials=sweep_trials,
            )
            plan = options.plan(found)
            client = OpenAiClient(found.api, options.client_options(), clock)
        except (ValueError, OSError, PromptError, NothingToAsk) as error:
            raise CommandError(str(error)) from error
        results = _Results(as_json, json_file, html, records)
        results.check()
        try:
            uvloop.run(_sweep(plan, options, client, results) if sweep else _run(plan, client, results))
        except (NothingMeasured, PromptError) as error:
            raise CommandError(str(error)) from error


@dataclass(frozen=True)
class _Results:
    """Where they go."""

    as_json: bool
    json_file: Path | None
    html: Path | None
    records: Path | None

    def check(self) -> None:
        """Before anything is asked. Raises CommandError where one cannot be written."""
        for file in (self.json_file, self.html, self.records):
            if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
                raise CommandError(f"{file} cannot be written: name a file in a folder that is there and yours")

    def write(self, report: Report | SweepReport, shown: RenderableType, page: Callable[[], str]) -> None:
        document = msgspec.json.format(msgspec.json.encode(report))
        if self.as_json:
            print(document.decode())
        else:
            out.print(shown)
        if self.json_file is not None:
            self.json_file.write_bytes(document + b"\n")
        if self.html is not None:
            self.html.write_text(page(), encoding="utf-8")


async def _run(plan: Plan, client: OpenAiClient, results: _Results) -> None:
    from tenora_platform.bench.plot import run_page
    from tenora_platform.bench.report import show
    from tenora_platform.bench.run import run

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with progress(*columns) as bar:
        tally = _Tally(plan.limits)
        task = bar.add_task("Asking", total=tally.total or None)

        def on_end(record: Record) -> None:
            tally.take(record)
            bar.update(task, description=str(tally), completed=tally.done)

        outcome = await run(plan, client, on_end)
    client.close()
    report = outcome.report
    results.write(report, show(report), lambda: run_page(report, outcome.observed))
    if results.records is not None:
        results.records.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in outcome.observed.records))
    if report.overall.completed == 0:
        raise CommandError("no request that counts was completed")


async def _sweep(plan: Plan, options: Options, client: OpenAiClient, results: _Results) -> None:
    from tenora_platform.bench.plot import sweep_page
    from tenora_platform.bench.report import show_sweep
    from tenora_platform.bench.run import Rate, sweep
    from tenora_platform.bench.sweep import Search

    assert isinstance(plan.shape, Rate)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with progress(*columns) as bar:
        task = bar.add_task("Trying rates", total=options.sweep_trials)

        def on_trial(trial: Trial) -> None:
            words = "met" if trial.met else "missed"
            bar.update(task, advance=1, description=f"{trial.rate:.2f} requests/s {words} the SLO")

        search = Search(plan.shape.rate, max_trials=options.sweep_trials)
        report = await sweep(plan, search, options.slo_share, client, on_trial)
    client.close()
    results.write(report, show_sweep(report), lambda: sweep_page(report))


class _Tally:
    """How far a run is: by its time or by its requests, whichever ends it."""

    def __init__(self, limits: Limits) -> None:
        self._timed = limits.duration_s is not None
        self.total = limits.duration_s if self._timed else (limits.requests or 0) + limits.warmup_requests
        self.done = 0.0
        self._began: float | None = None
        self._requests = self._failed = self._tokens = 0

    def take(self, record: Record) -> None:
        self._began = record.sent if self._began is None else self._began
        self._requests += 1
        self._failed += record.failure is not None
        self._tokens += record.output_tokens
        self.done = (record.ended or record.sent) - self._began if self._timed else self._requests

    def __str__(self) -> str:
        return f"{self._requests} requests, {self._tokens} tokens, {self._failed} failed"
