"""What commands print with, and the one error they raise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn
from rich.table import Table

out: Final = Console()
errors: Final = Console(stderr=True)


class CommandError(Exception):
    """The command cannot be done. The message is for the person at the terminal; rich markup is escaped in it."""

    def __init__(self, message: str) -> None:
        super().__init__(escape(message))


def say(line: str, *, markup: bool = True) -> None:
    """One line, not wrapped at the terminal's width and coloured by its markup alone."""
    out.print(line, markup=markup, highlight=False, soft_wrap=True)


def waiting(what: str) -> AbstractContextManager[object]:
    """Say at a terminal that something takes its time; elsewhere, nothing."""
    return errors.status(what) if errors.is_terminal else nullcontext()


def progress(*columns: ProgressColumn) -> Progress:
    """Progress at a terminal, gone when it is done; elsewhere, nothing."""
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def print_json(value: Any) -> None:
    """Print machine-readable output, undecorated whatever the terminal is."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A table in which numbers stand to the right."""
    rows = [list(row) for row in rows]
    result = Table(title=title, title_justify="left", header_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        result.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        result.add_row(*(f"{cell:,}" if isinstance(cell, int) else escape(str(cell)) for cell in row))
    return result


def short_time(value: str | None) -> str:
    """An API instant as people read it, in this machine's zone; a dash for none."""
    return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M") if value else "-"
