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
            made, path = make_export(control, row["id"], month, output or f"tenora-{row['name']}-{month}")
        if as_json:
            print_json(made)
            return
        say(f"{path}: {summary(made)}")


def make_export(control: ControlClient, tenant_id: str, month: str, to: Path | str) -> tuple[dict[str, Any], Path]:
    """Make the export of a month, wait for it and write its CSV; the export and the file. Raises CommandError.

    `to` is the file, or the beginning of its name: then the revision is added, so that none replaces another.
    """
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
    path = to if isinstance(to, Path) else Path(f"{to}-r{made['revision']}.csv")
    document = control.download(f"{url}/file")
    try:
        path.write_bytes(document)
    except OSError as error:
        raise CommandError(f"the export is made, but {path} cannot be written: {error.strerror}") from error
    return made, path


def summary(made: dict[str, Any]) -> str:
    rows = f"{made['rows']} row{'' if made['rows'] == 1 else 's'}"
    since = f" (what came after revision {made['revision'] - 1}: add them up)" if made["revision"] > 1 else ""
    return f"{rows}, revision {made['revision']}{since}, sha256 {made['sha256']}"
