"""The web UI's client is generated from a committed description of the control API: it must be today's."""

from __future__ import annotations

import json
from pathlib import Path

from tenora_platform.control.openapi import document


def test_the_committed_description_is_the_control_apis_own(repository: Path) -> None:
    committed = json.loads((repository / "webui" / "openapi.json").read_text(encoding="utf-8"))
    assert committed == json.loads(document()), (
        "the control API has changed: python -m tenora_platform.control.openapi > webui/openapi.json, "
        "then `npm run generate` in webui/"
    )
