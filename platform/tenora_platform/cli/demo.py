"""`tenora demo`: the main job, before your eyes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from tenora_platform.cli.terminal import CommandError, out, progress, say, table

if TYPE_CHECKING:
    from rich.table import Table

    from tenora_platform.cli.client import ControlClient
    from tenora_platform.demo import Answer, TenantAccess

_BOOKED_WITHIN_S = 30.0
OnText = Callable[[str, str], None]  # (model, tenant), at each piece of text


def register(app: typer.Typer) -> None:
    @app.command("demo")
    def demo(
        adapters: Annotated[Path, typer.Option(help="Folder with the demo adapters.")] = Path("examples/adapters"),
        output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the exports.")] = None,
    ) -> None:
        """Start the platform if need be, serve two tenants' adapters at once, bill them, and leave it up."""
        import msgspec

        from tenora_platform.cli.client import connect
        from tenora_platform.cli.exports import make_export, summary
        from tenora_platform.cli.lifecycle import show_start
        from tenora_platform.demo import QUESTION, TENANTS, DemoFile, chat_at_once, set_up_tenant
        from tenora_platform.settings import settings
        from tenora_platform.stack.home import write_private
        from tenora_platform.stack.launch import open_home
        from tenora_platform.stack.part import StackError
        from tenora_platform.stack.state import is_running, read_state

        config = settings()
        home = open_home(config)
        for wanted in TENANTS:
            if not (adapters / wanted.adapter).is_dir():
                raise CommandError(f"no adapter {wanted.adapter!r} in {adapters}; run this in the repository")
        try:
            if not is_running(home):
                show_start(config)
        except StackError as error:
            raise CommandError(str(error)) from error
        state = read_state(home)
        assert state is not None, "a running platform has a state"

        with connect() as control:
            access = [set_up_tenant(control, tenant, adapters) for tenant in TENANTS]
            before = {tenant.id: _booked(control, tenant) for tenant in access}
            say(f"\n[bold]Two tenants ask at once:[/] {QUESTION}")
            answers = _chat(lambda on_text: chat_at_once(state.urls["api"], config.model_name, access, on_text))
            for answer in answers:
                say(f"\n[bold]{answer.tenant}[/] asks [cyan]{answer.model}[/]")
                say(answer.text, markup=False)
            _check_that_adapters_differ(answers)

            _wait_until_booked(control, access, before, answers)
            out.print(_usage_table(control, access))
            folder = output or home.root / "exports"
            folder.mkdir(parents=True, exist_ok=True)
            for tenant in access:
                month = control.get(f"/tenants/{tenant.id}/usage", bucket="day")["items"][-1]["bucket_start"][:7]
                made, path = make_export(control, tenant.id, month, f"{folder}/{tenant.name}-{month}")
                say(f"Billing export of {tenant.name}: {path}")
                say(f"  {summary(made)}")

        password = config.admin_password.get_secret_value() or home.secrets().admin_password
        document = DemoFile(
            api=state.urls["api"],
            control=state.urls["control"],
            web=state.urls["web"],
            base_model=config.model_name,
            tenants=access,
            admin_user=config.admin_user,
            admin_password=password,
        )
        write_private(home.demo_file, msgspec.json.format(msgspec.json.encode(document)))
        say("\n[bold green]The platform is up and stays up.[/] Stop it with: make down (or tenora down)")
        say(f"  web UI   {state.urls['web']}  user {config.admin_user}  password {password}")
        say(f"  API      {state.urls['api']}  keys and model names in {home.demo_file}")


def _chat(run: Callable[[OnText], list[Answer]]) -> list[Answer]:
    """Run the chats with a line of progress per tokens streamed."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    pieces: dict[tuple[str, str], int] = {}
    with progress(*columns) as bar:
        task = bar.add_task("Streaming", total=None)

        def on_text(model: str, tenant: str) -> None:
            pieces[tenant, model] = pieces.get((tenant, model), 0) + 1
            bar.update(task, description=f"Streaming to {len(pieces)} clients, {sum(pieces.values())} pieces")

        return run(on_text)


def _check_that_adapters_differ(answers: list[Answer]) -> None:
    texts: dict[str, set[str]] = {}
    for answer in answers:
        texts.setdefault(answer.model, set()).add(answer.text)
    distinct = set().union(*texts.values())
    if len(distinct) < len(texts):
        raise CommandError("two models gave the same answer: an adapter was not applied")


def _booked(control: ControlClient, tenant: TenantAccess) -> int:
    rows = control.get(f"/tenants/{tenant.id}/usage", bucket="day")["items"]
    return sum(row["prompt_tokens"] + row["completion_tokens"] for row in rows)


def _wait_until_booked(
    control: ControlClient, access: list[TenantAccess], before: dict[str, int], answers: list[Answer]
) -> None:
    """The books show exactly what the clients were told, or this raises CommandError."""
    deadline = time.monotonic() + _BOOKED_WITHIN_S
    for tenant in access:
        told = sum(a.prompt_tokens + a.completion_tokens for a in answers if a.tenant == tenant.name)
        while (booked := _booked(control, tenant) - before[tenant.id]) != told:
            if time.monotonic() > deadline:
                raise CommandError(f"{tenant.name} was told {told} tokens, but {booked} are booked")
            time.sleep(0.2)


def _usage_table(control: ControlClient, access: list[TenantAccess]) -> Table:
    counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    rows = [
        (tenant.name, ":".join(filter(None, [row["base_model"], row["adapter"]])), *(row[count] for count in counts))
        for tenant in access
        for row in control.get(f"/tenants/{tenant.id}/usage", bucket="day")["items"]
    ]
    columns = ["tenant", "model", "requests", "prompt", "cached", "completion"]
    return table(columns, rows, title="\nUsage, as booked (tokens)")
