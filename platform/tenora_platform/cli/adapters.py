"""`tenora adapter`: upload a PEFT LoRA adapter and see what became of it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TransferSpeedColumn

from tenora_adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from tenora_platform.cli.options import AsJson, Tenant
from tenora_platform.cli.terminal import CommandError, out, print_json, progress, say, short_time, table

if TYPE_CHECKING:
    from tenora_platform.cli.client import ControlClient

app = typer.Typer(help="Adapters of a tenant.", no_args_is_help=True)

_VALIDATION_TIMEOUT_S = 300.0


@app.command("push")
def push(
    path: Annotated[Path, typer.Argument(help="A PEFT folder, or a zip or tar of one.", exists=True, readable=True)],
    tenant: Tenant,
    name: Annotated[str, typer.Option("--name", "-n", help="Its name; the same name again makes the next version.")],
    confirm_base: Annotated[
        bool, typer.Option("--confirm-base", help="Its config names no base model; it was made for the one served.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Upload an adapter, wait for its validation, and say which model name serves it."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        version = push_adapter(control, path, control.tenant_id(tenant), name, confirm_base=confirm_base)
    if as_json:
        print_json(version)
        return
    for warning in version["report"].get("warnings", []):
        say(f"[yellow]warning[/] {warning['code']}: {warning['message']}")
    say(f"Version {version['number']} is ready. Ask for model [bold]{version['model']}[/].")


@app.command("list")
def list_adapters(tenant: Tenant, as_json: AsJson = False) -> None:
    """List a tenant's adapters."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        adapters = list(control.items(f"/tenants/{control.tenant_id(tenant)}/adapters"))
    if as_json:
        print_json(adapters)
        return
    rows = [
        (
            a["model"],
            f"v{a['active_version']['number']}" if a["active_version"] else "none yet",
            short_time(a["created_at"]),
        )
        for a in adapters
    ]
    out.print(table(["model", "active version", "made"], rows))


def push_adapter(
    control: ControlClient, path: Path, tenant_id: str, name: str, *, confirm_base: bool = False
) -> dict[str, Any]:
    """Upload `path` with a progress bar and wait until it is validated: the version, with `model` added.

    Raises CommandError with the report when it is refused or rejected.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with ExitStack() as stack:
        bar = stack.enter_context(progress(*columns))
        files = _files_of(path)
        task = bar.add_task(f"Uploading {name}", total=sum(file.stat().st_size for file in files))
        parts = [
            ("files", (file.name, _Counted(stack.enter_context(file.open("rb")), lambda n: bar.advance(task, n))))
            for file in files
        ]
        fields = {"name": name, "confirm_base": str(confirm_base).lower()}
        answer = control.post(f"/tenants/{tenant_id}/adapters", data=fields, files=parts)
        version, adapter = answer["version"], answer["adapter"]
        bar.update(task, description=f"Validating {name}", total=None)
        url = f"/tenants/{tenant_id}/adapters/{adapter['id']}/versions/{version['id']}"
        deadline = time.monotonic() + _VALIDATION_TIMEOUT_S
        while version["status"] == "validating":
            if time.monotonic() > deadline:
                raise CommandError(f"validation takes unusually long; is the worker up? tenora status. Version: {url}")
            time.sleep(0.2)
            version = control.get(url)
    if version["status"] != "ready":
        problems = [f"  - {item['code']}: {item['message']}" for item in version["report"].get("problems", [])]
        raise CommandError("\n".join([f"{name} v{version['number']} was {version['status']}:", *problems]))
    return {**version, "model": adapter["model"]}


def _files_of(path: Path) -> list[Path]:
    """The files to send: of a folder the two that make an adapter, else the archive itself."""
    if not path.is_dir():
        return [path]
    files = [path / CONFIG_FILE, path / WEIGHTS_FILE]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CommandError(f"{path} holds no {' and no '.join(missing)}; that is what PEFT's save_pretrained writes")
    return files


class _Counted(io.RawIOBase):
    """A file that tells how many bytes were read from it."""

    def __init__(self, file: BinaryIO, on_read: Callable[[int], None]) -> None:
        self._file = file
        self._on_read = on_read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._on_read(len(data))
        return data
