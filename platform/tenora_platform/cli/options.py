"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

Tenant = Annotated[str, typer.Option("--tenant", "-t", help="Name or id of the tenant.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
