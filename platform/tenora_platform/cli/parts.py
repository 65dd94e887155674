"""The long-running parts, each by its own subcommand, configured by the environment: how production runs them."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated

import typer

from tenora_platform.cli.terminal import CommandError

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    @app.command("engine", context_settings={**_PASS_ON, "help_option_names": []})
    def engine(context: typer.Context) -> None:
        """Serve one base model and its adapters over ZeroMQ. `tenora engine --help` lists the options."""
        _become_engine("serve", context.args)

    @app.command("tune", context_settings={**_PASS_ON, "help_option_names": []})
    def tune(context: typer.Context) -> None:
        """Measure how the kernels are launched best on this machine's GPU. `tenora tune --help` lists the options."""
        _become_engine("tune", context.args)

    @app.command("gateway")
    def gateway() -> None:
        """Serve the tenants' API (/v1) alone."""
        _serve("tenora_platform.web:create_gateway_app")

    @app.command("control")
    def control() -> None:
        """Serve the control API (/api/v1) and the web UI alone."""
        _serve("tenora_platform.web:create_control_app")

    @app.command("web")
    def web() -> None:
        """Serve gateway, control API and web UI from one process, as `tenora up` does."""
        _serve("tenora_platform.web:create_app")

    @app.command("worker")
    def worker(
        beat: Annotated[bool, typer.Option(help="Also run the schedule. One worker of a platform does.")] = False,
        concurrency: Annotated[int, typer.Option(min=1, help="Jobs at a time.")] = 1,
    ) -> None:
        """Run background jobs: validation of adapters, exports."""
        from tenora_platform.settings import settings
        from tenora_platform.worker.app import celery_app

        options = ["worker", "--loglevel", "INFO", "--concurrency", str(concurrency)]
        if beat:
            run = settings().home.expanduser() / "run"
            run.mkdir(parents=True, exist_ok=True)
            options += ["--beat", "--schedule", str(run / "celerybeat-schedule")]
        celery_app.worker_main(options)

    @app.command("migrate")
    def migrate() -> None:
        """Bring the database to this version, and make the first administrator and base model if need be."""
        from tenora_platform.control.bootstrap import bootstrap
        from tenora_platform.settings import settings

        bootstrap(settings())


def _become_engine(command: str, arguments: list[str]) -> None:
    if importlib.util.find_spec("torch") is None:
        raise CommandError("the engine needs torch: pip install 'tenora[engine]'")
    os.execv(sys.executable, [sys.executable, "-m", "tenora_engine", command, *arguments])  # noqa: S606


def _serve(application: str) -> None:
    import uvicorn

    from tenora_platform.gateway.server import uvicorn_options
    from tenora_platform.settings import settings

    config = settings()
    uvicorn.run(
        application,
        factory=True,
        host=config.host,
        port=config.port,
        access_log=False,
        **uvicorn_options(),
    )
