"""Whole runs against a server over real sockets, and what the command makes of them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from scripted_server import Asked, ScriptedServer, Step, refusal, whole

from tenora_platform.bench.client import OpenAiClient
from tenora_platform.bench.options import Options
from tenora_platform.bench.plot import run_page, sweep_page
from tenora_platform.bench.report import Report, SweepReport, show, show_sweep
from tenora_platform.bench.run import Outcome, clock, run, sweep
from tenora_platform.bench.sweep import Search
from tenora_platform.bench.targets import Targets, TargetTenant


def answer(asked: Asked) -> Sequence[Step]:
    if asked.body["model"] == "base:full":
        return [refusal("429 Too Many Requests", {"error": {"message": "quota"}})]
    return whole(["x"] * asked.body["max_tokens"], prompt=len(asked.body["prompt"].split()), pause_s=0.002)


def targets(url: str) -> Targets:
    return Targets(url, [TargetTenant("a", ["base", "base:bot"], "tnr_a"), TargetTenant("b", ["base:full"], "tnr_b")])


async def outcome_of(server: ScriptedServer, options: Options) -> Outcome:
    server.script = answer
    found = targets(server.url)
    client = OpenAiClient(found.api, options.client_options(), clock)
    outcome = await run(options.plan(found), client)
    client.close()
    return outcome


async def test_a_run_reports_what_the_server_did(server: ScriptedServer) -> None:
    outcome = await outcome_of(server, Options(streams=4, requests=40, prompt="12", output="5"))
    report = outcome.report
    assert report.overall.requests == 40
    assert report.overall.completed + report.overall.errors["http_429"] == 40
    assert report.overall.prompt_tokens == 12 * report.overall.completed
    assert report.overall.output_tokens == 5 * report.overall.completed
    assert report.tenants["b"].completed == 0
    assert report.tenants["a"].requests + report.tenants["b"].requests == 40
    assert set(report.models) == {"base", "base:bot", "base:full"}
    assert report.samples == ["http_429: quota"]
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


async def test_an_open_loop_asks_at_the_rate(server: ScriptedServer) -> None:
    report = (await outcome_of(server, Options(rate=100.0, arrivals="constant", requests=50, warmup="5"))).report
    assert report.window_s == pytest.approx(0.5)
    assert report.overall.requests == 50


async def test_what_is_shown_names_figures_and_no_keys(server: ScriptedServer) -> None:
    outcome = await outcome_of(server, Options(streams=4, requests=20, output="3", slo_ttft=1000))
    text = io.StringIO()
    Console(width=200, file=text).print(show(outcome.report))
    shown, page = text.getvalue(), run_page(outcome.report, outcome.observed)
    for word in ("output tokens/s", "TTFT", "base:bot", "http_429"):
        assert word in shown
        assert word in page
    assert "tnr_" not in shown + page + msgspec.json.encode(outcome.report).decode()
    assert "<svg" in page
    assert "//" not in page  # no address: nothing is fetched
    assert "<script" not in page


async def test_a_sweep_tries_rates_and_reports_each(server: ScriptedServer) -> None:
    server.script = answer
    found = targets(server.url).asking(["base"])
    options = Options(sweep=True, slo_e2e=1000, duration=0.2, warmup="0", output="2")
    client = OpenAiClient(found.api, options.client_options(), clock)
    report = await sweep(options.plan(found), Search(20.0, max_trials=2), 0.9, client)
    client.close()
    assert [(trial.rate, trial.met) for trial in report.trials] == [(20.0, True), (40.0, True)]
    assert report.best == 40.0
    assert "Goodput" in sweep_page(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=SweepReport) == report
    assert show_sweep(report)


async def tenora(*arguments: str, home: Path, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tenora_platform.cli.main", *arguments),
        env={"PATH": os.environ["PATH"], "TENORA_HOME": str(home), "COLUMNS": "200", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    return process.returncode or 0, out.decode(), errors.decode()


async def test_the_command_measures_the_demo_and_writes_files(server: ScriptedServer, tmp_path: Path) -> None:
    server.script = answer
    demo = {
        "api": server.url,
        "base_model": "base",
        "tenants": [{"name": "a", "api_key": "tnr_a", "models": ["base:x"]}],
    }
    (tmp_path / "demo.json").write_text(json.dumps(demo))
    files = [f"--{kind}={tmp_path / name}" for kind, name in (("html", "page"), ("records", "r"), ("json-file", "j"))]
    load = ["--requests", "6", "--streams", "2", "--output", "3"]
    status, out, errors = await tenora("bench", *load, *files, home=tmp_path)
    assert (status, errors) == (0, "")
    assert "output tokens/s" in out
    assert len((tmp_path / "r").read_text().splitlines()) == 8
    assert json.loads((tmp_path / "j").read_text())["overall"]["completed"] == 6
    assert "tnr_a" not in out + "".join((tmp_path / name).read_text() for name in ("page", "r", "j"))


async def test_the_command_fails_where_nothing_was_completed(server: ScriptedServer, tmp_path: Path) -> None:
    server.script = answer
    asked = ("bench", "--url", server.url, "--model", "base:full", "--requests", "3", "--streams", "1")
    status, _, errors = await tenora(*asked, home=tmp_path, TENORA_KEY="tnr_a")
    assert status == 1
    assert "no request that counts was completed" in errors


async def test_the_command_says_what_it_lacks(tmp_path: Path) -> None:
    status, _, errors = await tenora("bench", home=tmp_path)
    assert status == 1
    assert "tenora demo" in errors
    assert "Traceback" not in errors
