"""`tenora export`: a tenant's exact usage of a month, as a file for billing."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

import typer

from tenora_platform.cli.options import AsJson, Tenant
from tenora_platform.cli.terminal import CommandError, print_json, say, waiting

if TYPE_CHECKING:
    from tenora_platform.cli.client import ControlClient

_TIMEOUT_S = 300.0


def register(app: typer.Typer) -> None:
    @app.command("export")
    def export(
        tenant: Tenant,
        period: Annotated[
            str | None, typer.Option(help="Month as YYYY-MM, in the tenant's zone; default: this one.")
        ] = None,
        output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the CSV.")] = None,
        as_json: AsJson = False,
    ) -> None:
        """Make a billing export and download it."""
        from tenora_platform.cli.client import connect

        with connect() as control:
            row = control.tenant(tenant)
            month = period or datetime.now(ZoneInfo(row["timezone"])).strftime("%Y-%m")
            path = output or Path(f"tenora-{row['name']}-{month}.csv")
            made = make_export(control, row["id"], month, path)
        if as_json:
            print_json(made)
            return
        say(f"{path}: {summary(made)}")


def make_export(control: ControlClient, tenant_id: str, month: str, path: Path) -> dict[str, Any]:
    """Make the export of a month, wait for it and write its CSV to `path`; the export. Raises CommandError."""
    made: dict[str, Any] = control.post(f"/tenants/{tenant_id}/exports", json={"period": month})
    url = f"/tenants/{tenant_id}/exports/{made['id']}"
    deadline = time.monotonic() + _TIMEOUT_S
    with waiting("Making the export"):
        while made["status"] == "pending":
            if time.monotonic() > deadline:
                raise CommandError("the export takes unusually long; is the worker up? tenora status")
            time.sleep(0.2)
            made = control.get(url)
    if made["status"] != "ready":
        raise CommandError(f"the export failed: {made.get('error') or 'see the worker log'}")
    document = control.download(f"{url}/file")
    try:
        path.write_bytes(document)
    except OSError as error:
        raise CommandError(f"the export is made, but {path} cannot be written: {error.strerror}") from error
    return made


def summary(made: dict[str, Any]) -> str:
    return f"{made['rows']} row{'' if made['rows'] == 1 else 's'}, revision {made['revision']}, sha256 {made['sha256']}"
