"""`tenora adapter`: upload PEFT LoRA adapters, see what became of them, and say which version serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TransferSpeedColumn

from tenora_platform.cli.options import AsJson, Tenant
from tenora_platform.cli.terminal import CommandError, out, print_json, progress, say, short_time, table

if TYPE_CHECKING:
    from tenora_platform.cli.client import ControlClient

app = typer.Typer(help="Adapters of a tenant.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The adapter's name, or base:name.")]
Number = Annotated[int, typer.Argument(min=1, help="The version's number.")]


@app.command("upload")
def upload(
    path: Annotated[Path, typer.Argument(help="A PEFT folder, or a zip or tar of one.", exists=True, readable=True)],
    tenant: Tenant,
    name: Annotated[str, typer.Option("--name", "-n", help="Its name; the same name again makes the next version.")],
    base: Annotated[str | None, typer.Option("--base", help="The base model; needed where there are several.")] = None,
    confirm_base: Annotated[
        bool, typer.Option("--confirm-base", help="Its config names no base model; it was made for the one served.")
    ] = False,
    promote: Annotated[
        bool, typer.Option("--promote/--no-promote", help="Whether the name serves it once it is ready.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Upload an adapter, wait for its validation, and say which model name serves it.

    An upload that was cut off goes on where it was when the same command is given again.
    """
    from tenora_platform.cli.client import ApiError, connect
    from tenora_platform.cli.reports import show_acceptance, show_rejection

    with connect() as control:
        tenant_id = control.tenant_id(tenant)
        try:
            version = _upload(control, path, tenant_id, _wanted(name, base, confirm_base, promote))
        except ApiError as refused:
            report = refused.error.get("report")
            if as_json:
                print_json({"error": refused.error})
            raise show_rejection(f"{name} was refused", (report or {}).get("problems") or [refused.error]) from None
    if as_json:
        print_json(version)
    if version["status"] != "ready":
        raise show_rejection(f"{name} v{version['number']} was {version['status']}", version["report"]["problems"])
    if as_json:
        return
    show_acceptance(version, modules=False)
    asked = version["model"] if version["share_percent"] else f"{version['model']}@{version['number']}"
    say(f"Version {version['number']} is ready. Ask for model [bold]{asked}[/].")


def upload_adapter(
    control: ControlClient, path: Path, tenant_id: str, name: str, *, confirm_base: bool = False
) -> dict[str, Any]:
    """Upload `path` with a progress bar and wait until it is validated: the version, with `model` added.

    Raises CommandError with the report when it is refused or rejected.
    """
    version = _upload(control, path, tenant_id, _wanted(name, None, confirm_base, promote=True))
    if version["status"] != "ready":
        problems = [f"  - {item['code']}: {item['message']}" for item in version["report"]["problems"]]
        raise CommandError("\n".join([f"{name} v{version['number']} was {version['status']}:", *problems]))
    return version


@app.command("list")
def list_adapters(tenant: Tenant, as_json: AsJson = False) -> None:
    """List a tenant's adapters, and what of its quota they take up."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        path = f"/tenants/{control.tenant_id(tenant)}"
        adapters = list(control.items(f"{path}/adapters"))
        quota = control.get(f"{path}/adapter-quota")
    if as_json:
        print_json(adapters)
        return
    rows = [(a["model"], _serving(a), a["versions_count"], short_time(a["created_at"])) for a in adapters]
    out.print(table(["model", "serves", "versions", "made"], rows))
    say(", ".join(_used(quota, what) for what in ("adapters", "bytes")), markup=False)


@app.command("show")
def show(name: Name, tenant: Tenant, as_json: AsJson = False) -> None:
    """Show an adapter's versions, and the report of each."""
    from tenora_platform.cli.client import connect
    from tenora_platform.cli.reports import show_acceptance, show_rejection

    with connect() as control:
        detail = control.get(_url(control, tenant, name))
    if as_json:
        print_json(detail)
        return
    rows = [
        (
            f"v{v['number']}",
            v["status"],
            f"{v['share_percent']} %",
            v["size_bytes"],
            v["digest"][:12],
            short_time(v["created_at"]),
        )
        for v in detail["versions"]
    ]
    out.print(table(["version", "state", "of requests", "bytes", "digest", "made"], rows, title=detail["model"]))
    for version in detail["versions"]:
        if version["report"]["problems"]:
            say(f"v{version['number']} was rejected:")
            show_rejection("", version["report"]["problems"])
    if detail["active_version"] is not None:
        (active,) = (v for v in detail["versions"] if v["id"] == detail["active_version"]["id"])
        show_acceptance(active, modules=True)


@app.command("promote")
def promote_version(name: Name, version: Number, tenant: Tenant, as_json: AsJson = False) -> None:
    """Have the name serve this version alone."""
    _change(name, tenant, as_json, "POST", "promote", {"version": version})


@app.command("rollback")
def roll_back(name: Name, tenant: Tenant, as_json: AsJson = False) -> None:
    """End the canary if there is one, else serve the version before; again undoes it."""
    _change(name, tenant, as_json, "POST", "roll-back", None)


@app.command("canary")
def canary(
    name: Name,
    tenant: Tenant,
    version: Annotated[int | None, typer.Argument(min=1, help="The version's number.")] = None,
    percent: Annotated[int | None, typer.Argument(min=1, max=99, help="Of the name's requests.")] = None,
    end: Annotated[bool, typer.Option("--end", help="All requests go to the active version again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a version a share of the name's requests, change its share, or end it with --end."""
    if end is (version is not None) or (version is None) is not (percent is None):
        raise CommandError("say which version and how many per cent, or --end")
    if end:
        _change(name, tenant, as_json, "DELETE", "canary", None)
    else:
        _change(name, tenant, as_json, "PUT", "canary", {"version": version, "percent": percent})


@app.command("retire")
def retire(name: Name, version: Number, tenant: Tenant, as_json: AsJson = False) -> None:
    """No new requests for this version, by number either; its files stay."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        url = _url(control, tenant, name)
        detail = control.post(f"{url}/versions/{_version_id(control, url, version)}/retire")
    _show_serving(detail, as_json)


@app.command("delete")
def delete(
    name: Name,
    tenant: Tenant,
    version: Annotated[int | None, typer.Argument(min=1, help="One version only.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete an adapter, or one version of it. Requests in flight end as if nothing had happened."""
    from tenora_platform.cli.client import connect

    what = f"version {version} of {name}" if version else f"{name} with all its versions"
    if not yes and not typer.confirm(f"Delete {what}?"):
        raise CommandError("nothing was deleted")
    with connect() as control:
        url = _url(control, tenant, name)
        control.delete(f"{url}/versions/{_version_id(control, url, version)}" if version else url)
    say(f"Deleted {what}.", markup=False)


def _upload(control: ControlClient, path: Path, tenant_id: str, wanted: dict[str, Any]) -> dict[str, Any]:
    from tenora_platform.cli.uploading import files_of, send, wait_until_checked

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    files = files_of(path)
    with progress(*columns) as bar:
        task = bar.add_task(f"Uploading {wanted['name']}", total=sum(file.stat().st_size for file in files))
        accepted = send(control, tenant_id, files, wanted, lambda offset: bar.update(task, completed=offset))
        bar.update(task, description=f"Validating {wanted['name']}", total=None)
        return wait_until_checked(control, tenant_id, accepted)


def _used(quota: dict[str, Any], what: str) -> str:
    most = quota[f"max_{what}"]
    return f"{quota[f'used_{what}']:,} {what}" + ("" if most is None else f" of {most:,}")


def _wanted(name: str, base: str | None, confirm_base: bool, promote: bool) -> dict[str, Any]:
    return {"name": name, "base_model": base, "confirm_base": confirm_base, "promote": promote}


def _change(name: str, tenant: str, as_json: bool, method: str, step: str, body: dict[str, Any] | None) -> None:
    from tenora_platform.cli.client import connect

    with connect() as control:
        url = _url(control, tenant, name)
        _show_serving(control.request(method, f"{url}/{step}", json=body), as_json)


def _show_serving(detail: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(detail)
    else:
        say(f"{detail['model']} serves {_serving(detail)}.", markup=False)


def _serving(adapter: dict[str, Any]) -> str:
    """ "v3", "v3 90 %, v4 10 %" or "nothing yet"."""
    active, other = adapter["active_version"], adapter["canary_version"]
    if active is None:
        return "nothing yet"
    if other is None:
        return f"v{active['number']}"
    return ", ".join(f"v{version['number']} {version['share_percent']} %" for version in (active, other))


def _url(control: ControlClient, tenant: str, name: str) -> str:
    """Of the tenant's adapter of this name. Raises CommandError."""
    adapters = f"/tenants/{control.tenant_id(tenant)}/adapters"
    found = [
        adapter for adapter in control.items(adapters) if name in (adapter["name"], adapter["model"], adapter["id"])
    ]
    if not found:
        raise CommandError(f"there is no adapter {name!r}; see: tenora adapter list --tenant {tenant}")
    if len(found) > 1:
        raise CommandError(f"{name!r} is on several bases: say which of {', '.join(a['model'] for a in found)}")
    return f"{adapters}/{found[0]['id']}"


def _version_id(control: ControlClient, url: str, number: int) -> str:
    """Raises CommandError."""
    for version in control.get(url)["versions"]:
        if version["number"] == number:
            return str(version["id"])
    raise CommandError(f"there is no version {number}")
