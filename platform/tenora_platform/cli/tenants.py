"""`tenora tenant`: whom the platform serves."""

from __future__ import annotations

from typing import Annotated

import typer

from tenora_platform.cli.options import AsJson
from tenora_platform.cli.terminal import out, print_json, say, table

app = typer.Typer(help="Tenants: whom the platform serves.", no_args_is_help=True)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Short name: a-z, 0-9, '.', '_' and '-'.")],
    display_name: Annotated[str | None, typer.Option(help="Name for people.")] = None,
    timezone: Annotated[str, typer.Option(help="IANA time zone of its billing days.")] = "UTC",
    requests_per_minute: Annotated[int | None, typer.Option(min=0, help="Limit; none means unlimited.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=0, help="Limit; none means unlimited.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a tenant."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        body = {"name": name, "display_name": display_name or name, "timezone": timezone}
        tenant = control.post("/tenants", json=body)
        if requests_per_minute is not None or tokens_per_minute is not None:
            quota = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
            control.put(f"/tenants/{tenant['id']}/quota", json=quota)
    if as_json:
        print_json(tenant)
    else:
        say(f"Tenant [bold]{tenant['name']}[/] is made. Next: tenora key create --tenant {tenant['name']}")


@app.command("list")
def list_tenants(
    as_json: AsJson = False,
) -> None:
    """List the tenants."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        tenants = list(control.items("/tenants"))
    if as_json:
        print_json(tenants)
        return
    rows = [
        (t["name"], t["display_name"], t["timezone"], "disabled" if t["disabled_at"] else "active") for t in tenants
    ]
    out.print(table(["name", "display name", "time zone", "state"], rows))
