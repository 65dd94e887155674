"""`tenora key`: what a tenant's programs authenticate with."""

from __future__ import annotations

from typing import Annotated

import typer

from tenora_platform.cli.options import AsJson, Tenant
from tenora_platform.cli.terminal import CommandError, out, print_json, say, short_time, table

app = typer.Typer(help="API keys of a tenant.", no_args_is_help=True)


@app.command("create")
def create(
    tenant: Tenant, name: Annotated[str, typer.Option(help="What it is for.")] = "default", as_json: AsJson = False
) -> None:
    """Make a key. It is shown this once; only its hash is kept."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        key = control.post(f"/tenants/{control.tenant_id(tenant)}/keys", json={"name": name})
    if as_json:
        print_json(key)
        return
    out.print("This is the only time the key is shown:", style="yellow")
    print(key["key"])


@app.command("list")
def list_keys(tenant: Tenant, as_json: AsJson = False) -> None:
    """List a tenant's keys, without the secrets."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        keys = list(control.items(f"/tenants/{control.tenant_id(tenant)}/keys"))
    if as_json:
        print_json(keys)
        return
    rows = [(k["prefix"], k["name"], short_time(k["created_at"]), short_time(k["revoked_at"])) for k in keys]
    out.print(table(["prefix", "name", "made", "revoked"], rows))


@app.command("revoke")
def revoke(
    tenant: Tenant,
    key: Annotated[str, typer.Argument(help="Its id or prefix, as `tenora key list` shows.")],
) -> None:
    """Revoke a key. Every gateway refuses it within seconds."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        path = f"/tenants/{control.tenant_id(tenant)}/keys"
        for row in control.items(path):
            if key in (row["id"], row["prefix"]):
                control.delete(f"{path}/{row['id']}")
                say(f"Key [bold]{row['prefix']}[/] is revoked.")
                return
    raise CommandError(f"the tenant has no key {key!r}; see: tenora key list --tenant {tenant}")
