"""An export's two files, as bytes that depend on nothing but what is passed in. Pure.

`export.csv` is RFC 4180 in UTF-8: CRLF, quotes where needed. A text cell that a spreadsheet would take for a formula
gets a `'` in front; numbers stay numbers, negative ones too. `manifest.json` holds the same as JSON does: untouched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tenora_platform.control.exports.lines import Line
from tenora_platform.control.exports.money import total_amounts
from tenora_platform.control.usage.totals import Counts

CSV_FILE: Final = "export.csv"
MANIFEST_FILE: Final = "manifest.json"
COLUMNS: Final = (
    "tenant",
    "day",
    "timezone",
    "base_model",
    "adapter",
    "version_digest",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "currency",
    "prompt_per_million",
    "cached_per_million",
    "completion_per_million",
    "amount",
)
# What Excel, LibreOffice and Google Sheets take for the start of a formula, and the full-width forms that some of
# them fold into it (OWASP, "CSV Injection").
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@dataclass(frozen=True)
class Header:
    """What the files say about the export itself."""

    export_id: str
    tenant_id: str
    tenant: str
    first_day: str
    last_day: str
    timezone: str
    starts_at: str
    ends_at: str
    revision: int
    after_sequence: int  # of usage events: this revision holds those after it ...
    up_to_sequence: int  # ... up to this one


@dataclass(frozen=True)
class Files:
    csv: bytes
    manifest: bytes
    sha256: str  # of the CSV
    rows: int
    totals: dict[str, Any]


def render(header: Header, lines: Sequence[Line], prices: Sequence[dict[str, str]]) -> Files:
    csv = render_csv(header.tenant, header.timezone, lines)
    sha256 = hashlib.sha256(csv).hexdigest()
    totals = _totals(lines)
    manifest = {
        "schema": 1,
        **asdict(header),
        "file": CSV_FILE,
        "sha256": sha256,
        "bytes": len(csv),
        "rows": len(lines),
        "totals": totals,
        "prices": list(prices),
    }
    text = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return Files(csv=csv, manifest=text.encode(), sha256=sha256, rows=len(lines), totals=totals)


def render_csv(tenant: str, timezone: str, lines: Sequence[Line]) -> bytes:
    rows = [",".join(COLUMNS)]
    for line in lines:
        price, amount, counts = line.price, line.amount, line.counts
        texts = (tenant, line.day.isoformat(), timezone, line.base_model, line.adapter or "", line.version_digest or "")
        numbers = (counts.requests, counts.prompt, counts.cached, counts.completion)
        money = (price.prompt, price.cached, price.completion, amount) if price is not None else (None,) * 4
        cells = [text_cell(text) for text in texts]
        cells += [str(number) for number in numbers]
        cells.append(text_cell(price.currency if price else ""))
        cells += ["" if number is None else format(number, "f") for number in money]
        rows.append(",".join(cells))
    return ("\r\n".join(rows) + "\r\n").encode()


def text_cell(text: str) -> str:
    """One cell of text: harmless in a spreadsheet, quoted where RFC 4180 asks for it."""
    if text.startswith(_FORMULA):
        text = "'" + text
    if any(mark in text for mark in ',"\r\n'):
        text = '"' + text.replace('"', '""') + '"'
    return text


def _totals(lines: Sequence[Line]) -> dict[str, Any]:
    counts = sum((line.counts for line in lines), Counts())
    priced = [(line.price.currency, line.amount) for line in lines if line.price and line.amount is not None]
    return {
        "requests": counts.requests,
        "prompt_tokens": counts.prompt,
        "cached_tokens": counts.cached,
        "completion_tokens": counts.completion,
        "amounts": {currency: format(amount, "f") for currency, amount in total_amounts(priced).items()},
        "rows_without_price": sum(line.price is None for line in lines),
    }
