"""`python -m tenora_platform.control.openapi > openapi.json`: the document that clients are generated from."""

from __future__ import annotations

import json
import sys

from tenora_platform.control.app import build_api


def document() -> str:
    return json.dumps(build_api(None).openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
