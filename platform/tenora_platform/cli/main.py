"""The `tenora` command. Commands import what they need when they run, so that a node with one extra has them all
listed and only those that need more say what is missing."""

from __future__ import annotations

import sys
from typing import Final

import typer
from rich.markup import escape

from tenora_platform.cli import adapters, base_models, bench, demo, exports, keys, lifecycle, parts, tenants
from tenora_platform.cli.terminal import CommandError, errors

# The extra that brings what a command may find missing; all the rest comes with "platform".
_EXTRAS: Final = {"gguf": "model", "openai": "embedded", "psutil": "embedded"}

app = typer.Typer(
    name="tenora",
    help="Many LoRA adapters of many tenants on one shared base model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
lifecycle.register(app)
parts.register(app)
demo.register(app)
exports.register(app)
bench.register(app)
app.add_typer(tenants.app, name="tenant")
app.add_typer(keys.app, name="key")
app.add_typer(adapters.app, name="adapter")
app.add_typer(base_models.app, name="base")


def run() -> None:
    """Entry point. What a person can act on is one message and status 1; anything else is a bug and a traceback."""
    try:
        app()
    except CommandError as error:
        errors.print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except ValueError as error:
        message = _wrong_settings(error)
        if message is None:
            raise
        errors.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        wanted = escape(f"tenora[{_EXTRAS.get(error.name or '', 'platform')}]")
        errors.print(
            f"[bold red]error:[/] {error.name} is not installed: pip install '{wanted}'",
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(1)


def _wrong_settings(error: ValueError) -> str | None:
    """What is wrong in the environment, when that is what this error says."""
    try:
        from pydantic import ValidationError
    except ModuleNotFoundError:
        return None
    if not isinstance(error, ValidationError) or error.title != "Settings":
        return None
    # The value is not shown: some settings are secrets.
    return "\n".join(f"TENORA_{'_'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors())


if __name__ == "__main__":
    run()
