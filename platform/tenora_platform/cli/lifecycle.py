"""`tenora up`, `down`, `status` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn

from tenora_platform.cli.options import AsJson
from tenora_platform.cli.terminal import CommandError, errors, out, print_json, progress, say, table, waiting

if TYPE_CHECKING:
    from tenora_platform.settings import Settings
    from tenora_platform.stack.state import StackState

Port = Annotated[int | None, typer.Option(help="Port of the web process; TENORA_PORT does the same.")]


def register(app: typer.Typer) -> None:
    @app.command("up")
    def up(
        detach: Annotated[bool, typer.Option("--detach", "-d", help="Go on in the background.")] = False,
        port: Port = None,
    ) -> None:
        """Start the whole platform on this machine."""
        from tenora_platform.settings import settings
        from tenora_platform.stack.launch import open_home, run_supervisor
        from tenora_platform.stack.part import StackError
        from tenora_platform.stack.state import AlreadyRunning, is_running, read_state

        config = settings() if port is None else settings().model_copy(update={"port": port})
        home = open_home(config)
        state = read_state(home)
        if state is not None and is_running(home):
            say(f"Tenora is up already: {state.urls['web']}  (data: {home.root})")
            return
        try:
            if detach:
                show_start(config)
                return
            seen: dict[str, str] = {}

            def on_state(state: StackState) -> None:
                if state.progress is not None and state.progress.what not in seen:
                    seen[state.progress.what] = "begun"
                    say(state.progress.what)
                for part in state.parts:
                    if seen.get(part.name) != part.state:
                        seen[part.name] = part.state
                        say(f"{part.name:10} {part.state}")
                if state.up and "up" not in seen:
                    seen["up"] = "yes"
                    print_urls(state)
                    out.print("Ctrl-C stops it.")

            run_supervisor(config, on_state)
        except AlreadyRunning:
            raise CommandError(f"another platform is starting from {home.root}; see: tenora status") from None
        except StackError as error:
            raise CommandError(str(error)) from error

    @app.command("down")
    def down() -> None:
        """Stop the platform that runs from TENORA_HOME. Its data stay."""
        from tenora_platform.settings import settings
        from tenora_platform.stack.launch import open_home, stop
        from tenora_platform.stack.part import StackError

        home = open_home(settings())
        try:
            with waiting("Stopping"):
                stopped = stop(home)
        except StackError as error:
            raise CommandError(str(error)) from error
        say("Tenora is down." if stopped else f"Nothing runs from {home.root}.")

    @app.command("status")
    def status(as_json: AsJson = False) -> None:
        """Show what runs from TENORA_HOME. Exit status 3 when nothing does."""
        import importlib.metadata

        from tenora_platform.settings import settings
        from tenora_platform.stack.launch import open_home
        from tenora_platform.stack.state import is_running, read_state

        home = open_home(settings())
        state = read_state(home)
        alive = state is not None and is_running(home)
        if as_json:
            parts = state.parts if state is not None and alive else []
            print_json(
                {
                    "version": importlib.metadata.version("tenora"),
                    "home": str(home.root),
                    "urls": state.urls if state is not None and alive else {},
                    "parts": [{"name": p.name, "pid": p.pid, "state": str(p.state)} for p in parts],
                }
            )
        elif state is not None and alive:
            rows = [(p.name, str(p.state), str(p.pid or "-"), p.restarts) for p in state.parts]
            out.print(table(["part", "state", "pid", "restarts"], rows))
            print_urls(state)
        else:
            say(f"Nothing runs from {home.root}. Start it with: tenora up --detach")
        if not alive:
            raise typer.Exit(3)

    @app.command("doctor")
    def doctor() -> None:
        """Say what is missing on this machine, and how to get it. Exit status 1 when something needed is."""
        from tenora_platform.cli.checks import run_checks

        results = run_checks()
        for check in results:
            mark = "[green]ok[/]     " if check.ok else "[red]missing[/]" if check.needed else "[yellow]absent[/] "
            say(f"{mark} {check.name}: {check.detail}")
            if not check.ok:
                say(f"         {check.remedy}")
        if any(check.needed and not check.ok for check in results):
            raise typer.Exit(1)


def show_start(config: Settings) -> None:
    """Start in the background, with a bar for what takes long, and print the URLs. Raises StackError."""
    from tenora_platform.stack.launch import start_detached
    from tenora_platform.stack.state import PartState

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with progress(*columns) as bar:
        task = bar.add_task("Starting", total=None)
        if not errors.is_terminal:
            errors.print("Starting the platform; this takes up to a minute.")
        for state in start_detached(config):
            if state.progress is not None:
                step = state.progress
                bar.update(task, description=step.what, completed=step.done, total=step.total)
            elif state.parts:
                ready = sum(part.state is PartState.READY for part in state.parts)
                waiting = [part.name for part in state.parts if part.state is not PartState.READY]
                bar.update(task, description=f"Starting {', '.join(waiting)}", completed=ready, total=len(state.parts))
    print_urls(state)


def print_urls(state: StackState) -> None:
    from tenora_platform.settings import settings
    from tenora_platform.stack.launch import open_home

    config = settings()
    home = open_home(config)
    say(f"[bold green]Tenora {state.version} is up.[/]")
    say(f"  API      {state.urls['api']}")
    say(f"  web UI   {state.urls['web']}")
    say(f"  sign in  {config.admin_user}, password in {home.secrets_file} (admin_password)")
    say(f"  logs     {home.logs}")
