"""`tenora base`: the base models, and what adapters may call them."""

from __future__ import annotations

from typing import Annotated

import typer

from tenora_platform.cli.options import AsJson
from tenora_platform.cli.terminal import CommandError, out, print_json, say, table

app = typer.Typer(help="Base models, and what adapters may call them.", no_args_is_help=True)


@app.command("list")
def list_base_models(as_json: AsJson = False) -> None:
    """List the base models and the names that they accept."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        bases = list(control.items("/base-models"))
    if as_json:
        print_json(bases)
        return
    rows = [(b["name"], b["context_length"], ", ".join(b["accepted_names"]) or "-", b["fingerprint"]) for b in bases]
    out.print(table(["model", "context", "adapters may also call it", "fingerprint"], rows))


@app.command("accept")
def accept(
    base_model: Annotated[str, typer.Argument(help="The base model, by the name it is served under.")],
    names: Annotated[list[str], typer.Argument(help="What an adapter's base_model_name_or_path may say.")],
    remove: Annotated[bool, typer.Option("--remove", help="Accept these names no longer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Accept adapters whose config names this base by another name, a hub id or a path; it is never opened."""
    from tenora_platform.cli.client import connect

    with connect() as control:
        found = next((base for base in control.items("/base-models") if base["name"] == base_model), None)
        if found is None:
            raise CommandError(f"there is no base model {base_model!r}; see: tenora base list")
        before = set(found["accepted_names"])
        wanted = before - set(names) if remove else before | set(names)
        changed = control.put(f"/base-models/{found['id']}/accepted-names", json={"accepted_names": sorted(wanted)})
    if as_json:
        print_json(changed)
    else:
        say(f"{base_model} accepts: {', '.join([base_model, *changed['accepted_names']])}", markup=False)
